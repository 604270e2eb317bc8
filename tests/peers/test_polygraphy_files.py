"""Polygraphy 0.53.6 reads what biopsy writes, and biopsy what it writes. BIOPSY_PEER is the path of its command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.tensors.files import merge_feeds, read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Iteration, RunnerResult

pytestmark = pytest.mark.peer


def peer(folder: Path, *words: str) -> str:
    """What Polygraphy prints; it must succeed."""
    done = subprocess.run(
        [os.environ["BIOPSY_PEER"], *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model: out = x * y + x."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y", "out")]
    nodes = [helper.make_node("Mul", ["x", "y"], ["product"]), helper.make_node("Add", ["product", "x"], ["out"])]
    graph = helper.make_graph(nodes, "g", info[:2], info[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return tmp_path


RUN = ("run", "m.onnx", "--onnxrt")


def check_values(inputs: Path, outputs: Path) -> None:
    feeds = read_feeds(inputs)
    (result,) = read_results(outputs)
    assert result.runner.startswith("onnxrt-runner-N0-")
    assert len(feeds) == len(result.iterations) == 2
    assert not np.array_equal(feeds[0]["x"], feeds[1]["x"])
    for feed, iteration in zip(feeds, result.iterations, strict=True):
        assert iteration.runtime is not None
        np.testing.assert_allclose(iteration.outputs["out"], feed["x"] * feed["y"] + feed["x"], rtol=1e-6)


@pytest.mark.parametrize("extension", [".json", ""])
def test_its_inputs_and_outputs_are_read(folder: Path, extension: str) -> None:
    saved = ("--save-inputs", f"in{extension}", "--save-outputs", f"out{extension}", "--onnx-outputs", "*")
    peer(folder, *RUN, "--iterations", "2", *saved)
    check_values(folder / f"in{extension}", folder / f"out{extension}")
    merged = merge_feeds([read_feeds(folder / f"in{extension}"), read_feeds(folder / f"out{extension}")])
    assert [list(feed) for feed in merged] == [["x", "y", "product", "out"]] * 2


@pytest.mark.parametrize("extension", [".json", ""])
def test_it_reads_our_inputs_and_compares_with_our_outputs(folder: Path, extension: str) -> None:
    rng = np.random.default_rng(0)
    feeds = [{name: rng.random((2, 3), np.float32) for name in ("x", "y")} for _ in range(2)]
    right = [Iteration({"out": feed["x"] * feed["y"] + feed["x"]}, 0.25) for feed in feeds]
    write_feeds(folder / f"in{extension}", feeds)
    write_results(folder / f"out{extension}", [RunnerResult("onnxrt-runner-N0-01/02/26-03:04:05", tuple(right))])
    loaded = ("--load-inputs", f"in{extension}", "--load-outputs", f"out{extension}")
    assert "PASSED" in peer(folder, *RUN, *loaded)

    text = peer(folder, "inspect", "data", "--all", f"in{extension}")
    assert "x [dtype=float32, shape=(2, 3)]" in text
    text = peer(folder, "inspect", "data", "--all", f"out{extension}")
    assert "onnxrt-runner-N0-01/02/26-03:04:05" in text
    assert "(2 iterations)" in text


def test_it_reads_our_bfloat16_as_float32(folder: Path) -> None:
    import ml_dtypes

    write_feeds(folder / "in.json", [{"x": np.ones((2, 3), ml_dtypes.bfloat16), "y": np.ones((2, 3), np.float32)}])
    assert "x [dtype=float32, shape=(2, 3)]" in peer(folder, "inspect", "data", "in.json")
    peer(folder, *RUN, "--load-inputs", "in.json")


@pytest.mark.parametrize("show", [(), ("layers",), ("layers", "attrs", "weights")])
def test_inspect_model_prints_the_same_lines(folder: Path, show: tuple[str, ...]) -> None:
    from biopsy.model.describe import description

    theirs = peer(folder, "inspect", "model", "m.onnx", *(["--show", *show] if show else []))
    head = "[I] ==== ONNX Model ===="
    ours = [line.rstrip() for line in description(folder / "m.onnx", show)]
    assert ours[ours.index(head) :] == [line.rstrip() for line in theirs[theirs.index(head) :].rstrip().split("\n")]
