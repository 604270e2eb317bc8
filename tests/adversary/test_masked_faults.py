"""An engine computes an inner tensor wrongly, and what follows makes the outputs right: golden values tell, and where.

The faults are real ones of an engine; the original's own outputs are right in all of these models.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds

BIN = Path(sys.executable).parent
HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'

MODELS = {
    "a clip": (
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float low = {8}, float high = {9}>
        {
            [n0] a = Abs (x)
            [guilty] b = Exp (a)
            [n2] y = Clip (b, low, high)
            [n3] z = Sigmoid (a)
        }""",
        "offset.guilty=-0.25",
    ),
    "a relu": (
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z)
        {
            [n0] a = Abs (x)
            [guilty] b = Neg (a)
            [n2] c = Relu (b)
            [n3] y = Add (c, a)
            [n4] z = Sqrt (a)
        }""",
        "scale.guilty=2",
    ),
    "an argmax": (
        """g (float[2,4] x) => (int64[2,1] y, float[2,4] z)
        {
            [n0] a = Sigmoid (x)
            [guilty] b = Mul (a, a)
            [n2] y = ArgMax <axis = 1> (b)
            [n3] c = Exp (a)
            [n4] z = Neg (c)
        }""",
        "offset.guilty=0.5",
    ),
    "a product with zero": (
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float zero = {0}>
        {
            [n0] a = Tanh (x)
            [guilty] b = Cos (a)
            [n2] c = Sin (b)
            [n3] d = Mul (c, zero)
            [n4] y = Add (d, a)
            [n5] z = Exp (a)
        }""",
        "offset.guilty=0.5",
    ),
    "a choice of another branch": (
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float zero = {0}>
        {
            [n0] a = Abs (x)
            [guilty] b = Softplus (a)
            [n2] c = Sqrt (a)
            [n3] p = Less (a, zero)
            [n4] y = Where (p, b, c)
            [n5] z = Neg (c)
        }""",
        "scale.guilty=1.5",
    ),
    "the indices of the largest": (
        """g (float[2,4] x) => (int64[2,2] y, float[2,4] z) <int64[1] two = {2}>
        {
            [n0] a = Exp (x)
            [guilty] b = Sqrt (a)
            [n2] v, y = TopK (b, two)
            [n3] s = ReduceSum <keepdims = 1> (v)
            [n4] t = Shape (s)
            [n5] f = Cast <to = 1> (t)
            [n6] m = ReduceMax <keepdims = 0> (f)
            [n7] z = Mul (a, m)
        }""",
        "scale.guilty=1.5",
    ),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    return tmp_path


def with_golden_values(text: str) -> None:
    """model.onnx, golden.npz with every tensor, and layerwise.npz with the inputs too."""
    onnx.save(onnx.parser.parse_model(HEAD + text), "model.onnx")
    every = ["--onnx-outputs", "mark", "all", "--save-inputs", "inputs.npz", "--save-outputs", "golden.npz"]
    assert (
        main(["run", "model.onnx", "--onnxrt", "--optimization-level", "none", "--val-range", "[0.5,2]", *every]) == 0
    )
    assert main(["data", "to-input", "inputs.npz", "golden.npz", "-o", "layerwise.npz"]) == 0


def reduce(engine: str, *options: str) -> int:
    values = ["--load-inputs", "layerwise.npz", "--load-outputs", "golden.npz"]
    words = ["debug", "reduce", "model.onnx", "-o", "r.onnx", "--jobs", "1", *options]
    return main([*words, "--check", "biopsy", "run", "{}", "--engine", engine, *values])


def nodes() -> list[str]:
    return [node.name for node in onnx.load("r.onnx").graph.node]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["minimal", "bisect"])
@pytest.mark.parametrize("mask", MODELS)
def test_the_guilty_node_is_found_behind(here: Path, capsys: pytest.CaptureFixture[str], mask: str, mode: str) -> None:
    text, fault = MODELS[mask]
    with_golden_values(text)
    capsys.readouterr()
    assert reduce(f"fake:{fault}", "--mode", mode) == 0
    shown = capsys.readouterr()
    assert "the outputs are right; an inner tensor is wrong: continuing as with --mark-intermediate" in (
        shown.out + shown.err
    )
    assert nodes() == ["guilty"]


def test_a_golden_value_that_was_recorded_wrongly_leads_to_its_node(here: Path) -> None:
    """What reads it looks wrong as well, being fed the wrong value: the first in the order of the model is named."""
    with_golden_values(MODELS["a clip"][0])
    for file in ("golden.npz", "layerwise.npz"):
        (feed,) = read_feeds(Path(file))
        changed = {name: np.asarray(value) + (0.5 if name == "b" else 0) for name, value in feed.items()}
        np.savez(file, **changed)  # type: ignore[arg-type]
    assert reduce("onnxrt") == 0
    assert nodes() == ["guilty"]


def test_without_a_wrong_tensor_there_is_nothing_to_reduce(here: Path) -> None:
    with_golden_values(MODELS["a relu"][0])
    assert reduce("onnxrt") == 3
    assert not Path("r.onnx").exists()


def test_a_script_is_told_how_inner_tensors_are_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_golden_values(MODELS["a relu"][0])
    assert main(["debug", "reduce", "model.onnx", "-o", "r.onnx", "--jobs", "1", "--check", "true", "{}"]) == 3
    assert "--load-inputs layerwise.json --load-outputs golden.json" in capsys.readouterr().err
