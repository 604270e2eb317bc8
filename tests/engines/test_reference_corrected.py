"""What onnx's evaluator computes otherwise than the standard says, held against our own formulas and ONNX Runtime."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, create

WHOLE = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)


def run(engine: str, text: str, opset: int, feed: dict[str, np.ndarray]) -> np.ndarray:
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> {text}')
    return np.asarray(create(engine).build(ModelInput(model.SerializeToString(), Path())).run(feed)["y"])


def by_onnxruntime(text: str, opset: int, feed: dict[str, np.ndarray]) -> np.ndarray:
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> {text}')
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], feed)[0])


@pytest.mark.parametrize("engine", ["reference", EXACT])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_before_opset_13_a_softmax_is_of_the_matrix_to_which_its_input_is_flattened(
    operator: str, axis: int | None, engine: str
) -> None:
    setting = "" if axis is None else f"<axis = {axis}>"
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {operator}{setting}(x) }}"
    rows = WHOLE.reshape(math.prod(WHOLE.shape[: 1 if axis is None else axis % 3]), -1).astype(np.float64)
    softmax = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    formulas = {"Softmax": softmax, "LogSoftmax": np.log(softmax), "Hardmax": rows == rows.max(axis=1, keepdims=True)}
    given = run(engine, text, 11, {"x": WHOLE})
    np.testing.assert_allclose(given, formulas[operator].reshape(2, 3, 4), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given, by_onnxruntime(text, 11, {"x": WHOLE}), rtol=1e-5, atol=1e-5)
    if axis is not None:  # from opset 13 on, the axis alone counts
        np.testing.assert_allclose(
            run(engine, text, 13, {"x": WHOLE}), by_onnxruntime(text, 13, {"x": WHOLE}), rtol=1e-5
        )


@pytest.mark.parametrize("engine", ["reference", EXACT])
@pytest.mark.parametrize("opset", [7, 8, 9, 11, 13, 14, 15])
def test_a_batch_normalization_with_one_output_is_that_of_inference(opset: int, engine: str) -> None:
    channels = ", ".join(f"float[3] {name}" for name in "sbmv")
    text = (
        f"g (float[2,3,4] x, {channels}) => (float[2,3,4] y) {{ y = BatchNormalization<momentum=0.5>(x, s, b, m, v) }}"
    )
    s, b, m, v = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    feed = {"x": WHOLE, "s": s, "b": b, "m": m, "v": v}
    given = run(engine, text, opset, feed)
    formula = s[:, None] * (WHOLE - m[:, None]) / np.sqrt(v[:, None] + 1e-5) + b[:, None]
    np.testing.assert_allclose(given, formula, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given, by_onnxruntime(text, opset, feed), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ["reference", EXACT])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("y, h = LSTM<hidden_size = 2, clip = 0.5>(x, w, r)", "'clip' of LSTM"),
        ('y, h = LSTM<hidden_size = 2, activations = ["Tanh", "Tanh", "Tanh"]>(x, w, r)', "'activations' of LSTM"),
        ("y, h = LSTM<hidden_size = 2, input_forget = 1>(x, w, r)", "'input_forget' of LSTM"),
        ("y, h = LSTM<hidden_size = 2>(x, w, r, , l)", "'sequence_lens' of LSTM"),
        ('c = If(b) <then_branch = t () => (float d) { d = MaxPool<auto_pad = "SAME_LOWER">(x) }, '
         "else_branch = e () => (float f) { f = Identity(x) }> y = Identity(c)", "'auto_pad' of MaxPool"),
    ],
)  # fmt: skip
def test_what_the_evaluator_ignores_is_not_tried(text: str, named: str, engine: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 14]>'
        f"g (float[1,1,2] x, float[1,8,2] w, float[1,8,2] r, int32[1] l, bool b) => (float y) {{ {text} }}"
    )
    with pytest.raises(errors.EngineFailure, match=named) as caught:
        create(engine).build(ModelInput(model.SerializeToString(), Path()))
    assert caught.value.kind == "NotSupported"


@pytest.mark.parametrize("setting", ["input_forget = 0", 'activations = ["Sigmoid", "Tanh", "Tanh"]'])
def test_what_is_set_to_its_default_is_computed(setting: str) -> None:
    node = f"y, h = LSTM<hidden_size = 2, {setting}>(x, w, r)"
    text = f"g (float[1,1,2] x, float[1,8,2] w, float[1,8,2] r) => (float y) {{ {node} }}"
    feed = {"x": np.ones((1, 1, 2)), "w": np.ones((1, 8, 2)), "r": np.ones((1, 8, 2))}
    feed = {name: value.astype(np.float32) for name, value in feed.items()}
    np.testing.assert_allclose(run("reference", text, 14, feed), by_onnxruntime(text, 14, feed), rtol=1e-5, atol=1e-5)
