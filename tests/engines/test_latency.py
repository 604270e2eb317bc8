"""Latencies that are measured side by side in a real engine: a model against itself, and against a slower one."""

from pathlib import Path

import numpy as np
import pytest

from biopsy.engines.latency import Side, side_by_side
from biopsy.tensors.files import write_feeds
from support.models import chain, save


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    [given] = chain(1).graph.input
    shape = [dimension.dim_value for dimension in given.type.tensor_type.shape.dim]
    write_feeds(tmp_path / "feeds.json", [{given.name: np.ones(shape, np.float32)}])
    return tmp_path / "feeds.json"


def side(model: Path, feeds: Path, **environment: str) -> Side:
    engine = "onnxrt:threads=1,optimization=none"
    return Side(engine=engine, model=model, folder=model.parent, feeds=feeds, environment=environment)


def test_a_model_is_not_called_faster_or_slower_than_itself(tmp_path: Path, feeds: Path) -> None:
    one, other = save(chain(60), tmp_path / "one.onnx"), save(chain(60), tmp_path / "other.onnx")
    measured = [side_by_side(side(one, feeds), side(other, feeds)) for _ in range(3)]
    assert sum(latency is not None and latency.text == "no difference measured" for latency in measured) >= 2


@pytest.mark.parametrize("environment", [{}, {"SOME_SETTING": "1"}], ids=["one process", "two processes"])
def test_a_model_that_takes_far_longer_is_called_slower(environment: dict, tmp_path: Path, feeds: Path) -> None:
    fast, slow = save(chain(3), tmp_path / "fast.onnx"), save(chain(600), tmp_path / "slow.onnx")
    latency = side_by_side(side(fast, feeds), side(slow, feeds, **environment))
    assert latency is not None and latency.differs and latency.low is not None and latency.low > 2


def test_a_model_beside_an_original_that_cannot_be_run_is_told_in_milliseconds(tmp_path: Path, feeds: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    good = save(chain(3), tmp_path / "good.onnx")
    latency = side_by_side(side(tmp_path / "broken.onnx", feeds), side(good, feeds))
    assert latency is not None and latency.ratio is None and latency.text.endswith(" ms")
    assert side_by_side(side(good, feeds), side(tmp_path / "broken.onnx", feeds)) is None
