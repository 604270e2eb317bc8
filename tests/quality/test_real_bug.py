"""A true, silent failure of an engine (docs: the demonstration), reduced with the engine itself as the judge."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from biopsy.cli.demo import CULPRITS, demonstration_model
from support.bug import OFF, ON, disagrees, skip_without_it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bug") / "model.onnx"
    skip_without_it()
    path.write_bytes(demonstration_model().SerializeToString(deterministic=True))
    return path


def operators(path: Path) -> tuple[str, ...]:
    return tuple(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("mode", ["bisect", "minimal"])
def test_a_reference_made_anew_for_each_candidate_leaves_the_six_nodes(model: Path, tmp_path: Path, mode: str) -> None:
    biopsy.reduce(model, disagrees, tmp_path / "r.onnx", mode=mode)
    assert operators(tmp_path / "r.onnx") == CULPRITS
    assert (tmp_path / "r.onnx").stat().st_size < 20_000


def test_golden_values_leave_the_six_nodes(model: Path, tmp_path: Path) -> None:
    feed = {"tokens": np.random.default_rng(1).random((32, 32), np.float32)}
    golden = {**feed, **biopsy.run(model, OFF, feed, outputs="all")[0].iterations[0].outputs}

    def fails(candidate: Path) -> bool:
        return not biopsy.compare(biopsy.run(candidate, ON, golden)[0], golden, atol=1e-3, rtol=1e-3).passed

    biopsy.reduce(model, fails, tmp_path / "r.onnx", inputs=[feed])
    assert operators(tmp_path / "r.onnx") == CULPRITS
