"""What Polygraphy 0.53.6's surgeon makes of a model and what biopsy's does is the same. BIOPSY_PEER: its command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from support.models import info, model

pytestmark = pytest.mark.peer

Node = helper.make_node


def both(folder: Path, *words: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """What Polygraphy and what biopsy write for the same words; ``-o`` is added."""
    command = [os.environ["BIOPSY_PEER"], "surgeon", *words, "-o", "theirs.onnx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert main(["surgeon", *words, "-o", "ours.onnx"]) == 0
    return onnx.load(folder / "theirs.onnx"), onnx.load(folder / "ours.onnx")


@pytest.fixture(params=range(6))
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx in the current folder: products in a row, whose weights are plain, transposed, quantized or cast."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(request.param)
    onnx.save(products(rng), "m.onnx")
    return tmp_path


def products(rng: np.random.Generator) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    weights = [numpy_helper.from_array(np.float32(0.1), "scale")]

    def weight() -> str:
        values = rng.standard_normal((8, 8)).astype(np.float32)
        if rng.random() < 0.4:
            values[::4] = values[1::4] = 0
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return weights[-1].name

    def factor(number: int) -> str:
        form, name = rng.integers(4), weight()
        if form == 1:
            nodes.append(Node("Transpose", [name], [f"f{number}"], perm=[1, 0]))
        elif form == 2:
            nodes.append(Node("QuantizeLinear", [name, "scale"], [f"q{number}"]))
            nodes.append(Node("DequantizeLinear", [f"q{number}", "scale"], [f"f{number}"]))
        return f"f{number}" if form in (1, 2) else name

    last = "x"
    for number in range(5):
        operator = rng.choice(["MatMul", "Gemm", "Mine", "Add", "Shared"])
        if operator == "Shared":
            nodes.append(Node("Transpose", [weight()], [f"f{number}"], perm=[1, 0]))
            nodes.append(Node("Sum", [f"f{number}", f"f{number}"], [f"a{number}"]))
            nodes.append(Node("MatMul", [f"a{number}", f"f{number}"], [f"t{number}"]))
        else:
            nodes.append(Node(operator, [last, factor(number)], [f"t{number}"]))
        last = f"t{number}"
    return model(nodes, [info("x", [8, 8])], [info(last, None)], weights)


def test_the_same_weights_are_stripped_and_marked_in_the_same_way(folder: Path) -> None:
    theirs, ours = both(folder, "weight-strip", "m.onnx")
    assert list(theirs.graph.initializer) == list(ours.graph.initializer)
    assert list(theirs.graph.node) == list(ours.graph.node)
    assert theirs.doc_string == ours.doc_string


def test_each_reconstructs_what_the_other_stripped(folder: Path) -> None:
    both(folder, "weight-strip", "m.onnx")
    assert main(["surgeon", "weight-reconstruct", "theirs.onnx", "-o", "full.onnx"]) == 0
    (folder / "ours.onnx").replace(folder / "s.onnx")
    theirs, ours = both(folder, "weight-reconstruct", "s.onnx")
    full = onnx.load("full.onnx")
    for weights in zip(theirs.graph.initializer, ours.graph.initializer, full.graph.initializer, strict=True):
        arrays = [numpy_helper.to_array(weight) for weight in weights]
        assert {array.shape for array in arrays} == {arrays[0].shape}
        assert len({np.count_nonzero(array) == array.size // 2 for array in arrays}) == 1


def test_the_same_values_are_pruned(folder: Path) -> None:
    theirs, ours = both(folder, "prune", "m.onnx")
    for weights in zip(theirs.graph.initializer, ours.graph.initializer, strict=True):
        assert np.array_equal(*map(numpy_helper.to_array, weights))
