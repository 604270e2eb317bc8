"""What leads astray: a comparison that fails in another way too: NaN that the model masks, steps, flipped bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import biopsy
from biopsy.cli.app import main
from support.planting import planted

__all__ = ["planted"]

MODES = ["minimal", pytest.param("bisect", marks=pytest.mark.slow), pytest.param("linear", marks=pytest.mark.slow)]


def saved(path: Path, text: str, **weights: np.ndarray) -> Path:  # type: ignore[type-arg]
    model = onnx.parser.parse_model(text)
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def names(path: Path) -> list[str]:
    return [node.name for node in onnx.load(path).graph.node]


MASKED = """
<ir_version: 9, opset_import: ["" : 17]>
masked (float[1,64] x) => (float[1,64] y)
<bool[1] never = {0}>
{
    [broken] v = Tanh (x)
    [spread] w = Sigmoid (v)
    [mask] z = Where (never, w, x)
    [wrong] y = LeakyRelu (z)
}
"""


@pytest.mark.parametrize("mode", MODES)
def test_an_error_beyond_a_tolerance_is_not_reproduced_by_a_nan_that_the_model_masks(tmp_path: Path, mode: str) -> None:
    model = saved(tmp_path / "m.onnx", MASKED)
    planted = "fake:nan.broken=0.5,scale.wrong=1.5"
    check = ["biopsy", "run", "{}", "--engine", "fake", "--engine", planted]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", mode=mode)  # type: ignore[arg-type]
    assert names(tmp_path / "r.onnx") == ["wrong"]
    assert found.signature.startswith("compare · mismatch")


def test_a_nan_is_not_reproduced_by_an_error_beyond_a_tolerance(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", MASKED.replace("never = {0}", "never = {1}"))
    planted = "fake:nan.mask=0.5,scale.broken=1.5"
    check = ["biopsy", "run", "{}", "--engine", "fake", "--engine", planted]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx")
    assert names(tmp_path / "r.onnx") == ["mask"]
    assert "nan-mismatch" in found.signature


ATTENTION = """
<ir_version: 9, opset_import: ["" : 17]>
attention (float16[2,4,8] q, float16[2,4,8] k, float16[2,4,8] v) => (float16[2,4,8] y)
{
    [transpose] kt = Transpose <perm=[0,2,1]> (k)
    [scores] s = MatMul (q, kt)
    [mask] m = Add (s, never)
    [weigh] p = Softmax <axis=-1> (m)
    [sum] o = MatMul (p, v)
    [last] y = Tanh (o)
}
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_is_not_reproduced_by_the_infinity_of_which_it_is_made(tmp_path: Path, mode: str) -> None:
    never = np.triu(np.full((4, 4), -np.inf, np.float16), 1)
    never[0] = -np.inf  # a row that is masked whole: its Softmax is NaN
    model = saved(tmp_path / "m.onnx", ATTENTION, never=never)
    check = ["biopsy", "run", "{}", "--onnxrt", "--validate"]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", mode=mode)  # type: ignore[arg-type]
    assert names(tmp_path / "r.onnx") == ["mask", "weigh"]  # what makes NaN of infinity, and what makes infinity
    assert found.signature == "compare · nan · onnxrt"


INFINITIES = """
<ir_version: 9, opset_import: ["" : 17]>
infinities (float[1,64] x) => (float[1,64] y)
{
    [broken] a = Tanh (x)
    [hides] b = Sigmoid (a)
    [wrong] y = LeakyRelu (b)
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["-inf", "nan"])
def test_an_infinity_is_not_reproduced_by_a_nan_or_by_one_of_the_other_sign(
    tmp_path: Path, planted: Callable[..., str], inner: str
) -> None:
    model = saved(tmp_path / "m.onnx", INFINITIES)
    engine = planted({"op": "broken", "does": inner, "marked": True}, {"op": "wrong", "does": "inf"})
    check = ["biopsy", "run", "{}", "--reference", "--engine", engine]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx")
    assert names(tmp_path / "r.onnx") == ["wrong"]
    assert found.signature.startswith("compare · +inf-mismatch · planted")


QUANTIZED = """
<ir_version: 9, opset_import: ["" : 17]>
quantized (float[1,8,64,64] x) => (float[1,8,64,64] y)
<float s = {0.05}, uint8 z = {128}>
{
    [first] a = Conv <pads=[1,1,1,1]> (x, w)
    [quantize] q = QuantizeLinear (a, s, z)
    [dequantize] d = DequantizeLinear (q, s, z)
    [wrong] b = LeakyRelu (d)
    [last] y = Conv <pads=[1,1,1,1]> (b, w)
}
"""

FLIPPED = """
<ir_version: 9, opset_import: ["" : 17]>
flipped (float[1,8,64,64] x) => (float[1,8,64,64] y)
<float k = {20.0}>
{
    [first] a = Conv <pads=[1,1,1,1]> (x, w)
    [scale] b = Mul (a, k)
    [step] c = STEP (b)
    [wrong] d = LeakyRelu (c)
    [last] y = Conv <pads=[1,1,1,1]> (d, w)
}
"""

WEIGHT = (np.random.default_rng(0).normal(size=(8, 8, 3, 3)) / 8).astype(np.float32)
NOISE = "noise.first=3e-6,seed=1"
"""An error of some roundings that exceeds no tolerance by itself, and moves a few elements over a border."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(QUANTIZED, id="QuantizeLinear"),
        pytest.param(FLIPPED.replace("STEP", "Floor"), id="Floor", marks=pytest.mark.slow),
        pytest.param(FLIPPED.replace("STEP", "Round"), id="Round"),
    ],
)
def test_a_tensor_that_is_wrong_everywhere_does_not_end_at_a_step_with_some_elements_on_its_other_side(
    tmp_path: Path, text: str, mode: str
) -> None:
    model = saved(tmp_path / "m.onnx", text, w=WEIGHT)
    compared = ["--engine", "fake", "--engine", f"fake:{NOISE},scale.wrong=1.1", "--atol", "1e-4", "--rtol", "1e-4"]
    biopsy.reduce(model, ["biopsy", "run", "{}", *compared], tmp_path / "r.onnx", mode=mode)  # type: ignore[arg-type]
    assert names(tmp_path / "r.onnx")[-1] == "wrong", "random inputs may need some nodes before it"


COMPARED = """
<ir_version: 9, opset_import: ["" : 17]>
compared (float[64,256] x) => (float[64,256] y)
{
    [first] a = MatMul (x, m)
    [above] g = Greater (a, border)
    [number] n = Cast <to=1> (g)
    [join] j = Add (a, n)
    [wrong] y = LeakyRelu (j)
}
"""


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_few_truth_values_that_rounding_turned_over_are_not_the_failure(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(2)
    x, weight = (rng.normal(size=size).astype(np.float32) for size in ((64, 256), (256, 256)))
    border = np.full((64, 256), 1e4, np.float32)
    near = rng.choice(border.size, 40, replace=False)
    border.reshape(-1)[near] = (x @ weight).reshape(-1)[near]
    model = saved(tmp_path / "m.onnx", COMPARED, m=weight, border=border)
    np.savez(tmp_path / "x.npz", x=x)
    compared = ["--engine", "fake", "--engine", "fake:noise.first=3e-7,scale.wrong=3,seed=1"]
    allowed = ["--atol", "1e-3", "--rtol", "1e-3", "--load-inputs", str(tmp_path / "x.npz")]
    check = ["biopsy", "run", "{}", *compared, *allowed]
    biopsy.reduce(model, check, tmp_path / "r.onnx", mode=mode, inputs=[{"x": x}])  # type: ignore[arg-type]
    assert "wrong" in names(tmp_path / "r.onnx")


def test_the_verdict_of_a_run_names_kind_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(tmp_path / "m.onnx", MASKED)
    monkeypatch.setenv("BIOPSY_VERDICT", str(tmp_path / "verdict.json"))
    assert main(["run", str(model), "--engine", "fake", "--engine", "fake:scale.wrong=1.5"]) == 1
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["kind"] == "mismatch"
    (size,) = told["mismatches"]
    assert (size["output"], size["elements"], size["wrong"], size["above"]) == ("y", 64, 64, 64)
    assert size["times_tolerance"] > 1e3
    assert told["rounding"] is None, "nobody asked"


@pytest.mark.slow
def test_a_script_that_tells_no_size_is_judged_as_before(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", QUANTIZED, w=WEIGHT)
    script = tmp_path / "check.sh"
    compared = f"--engine fake --engine fake:{NOISE},scale.wrong=1.1 --atol 1e-4 --rtol 1e-4"
    biopsy_here = f"{__import__('sys').executable} -m biopsy"
    script.write_text(f"#!/bin/sh\nunset BIOPSY_VERDICT\n{biopsy_here} run $1 {compared}\n")
    script.chmod(0o755)
    found = biopsy.reduce(model, [str(script), "{}"], tmp_path / "r.onnx", mode="bisect")
    assert not found.other_failures
    assert found.error_before is None
