"""A true, silent failure of an engine (docs: the demonstration), reduced with the engine itself as the judge."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from biopsy.model.demonstration import CULPRITS, demonstration_model

OFF, ON = "onnxrt:optimization=none,threads=1", "onnxrt:threads=1"


def disagrees(candidate: Path) -> bool:
    """Whether onnxruntime with its optimizer on and off gives different outputs for the same made inputs."""
    expected, actual = biopsy.run(candidate, engines=[OFF, ON])
    return not biopsy.compare(actual, expected, atol=1e-3, rtol=1e-3).passed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bug") / "model.onnx"
    path.write_bytes(demonstration_model().SerializeToString(deterministic=True))
    if not disagrees(path):
        pytest.skip("the installed onnxruntime does not have this bug")
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
