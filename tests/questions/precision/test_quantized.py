"""int8 by onnxruntime's quantization: which layers it takes, and which are left out."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.errors import EngineFailure, UsageError
from biopsy.questions.precision.mixed_models import CalibrationInputs, QuantizedModels
from support.models import info, model, weight

X = np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 2)


def three() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Tanh", ["b"], ["c"], name="tanh"),
        helper.make_node("Mul", ["c", "v"], ["d"], name="mul"),
        helper.make_node("Add", ["d", "x"], ["y"], name="add"),
    ]
    return model(nodes, [info("x")], [info("y")], [weight("w", 0.1, -0.7, 0.4, 0.9, shape=(2, 2)), weight("v", 0.7)])


def mixed_models() -> QuantizedModels:
    return QuantizedModels(three(), Path(), {}, [{"x": X}, {"x": -X}])


def quantized(made: QuantizedModels, *high: int) -> set[str]:
    """The operators of the nodes that read what a DequantizeLinear gives."""
    found = onnx.ModelProto.FromString(b"".join(made.parts(frozenset(high))))
    onnx.checker.check_model(found)
    given = {node.output[0] for node in found.graph.node if node.op_type == "DequantizeLinear"}
    kinds = {node.op_type for node in found.graph.node if given & set(node.input)}
    return kinds - {"QuantizeLinear", "DequantizeLinear"}


def test_layers_are_what_onnxruntime_quantizes_and_each_has_a_name_of_its_own() -> None:
    named = three()
    for node in named.graph.node[1:]:
        node.name = "same"
    made = QuantizedModels(named, Path(), {}, [{"x": X}])
    assert [layer.op_type for layer in made.layers] == ["MatMul", "Mul", "Add"]
    assert len({layer.name for layer in made.layers}) == 3
    assert made.stays == {"onnxruntime does not quantize Tanh": 1}


def test_only_low_layers_are_quantized(run) -> None:
    made = mixed_models()
    assert {"MatMul", "Mul", "Add"} <= quantized(made)
    assert "Mul" not in quantized(made, 1)
    assert "Mul" not in quantized(made, 1, 2)
    found = onnx.ModelProto.FromString(b"".join(made.parts(frozenset({1}))))
    (expected,), (actual,) = run(three(), {"x": X}), run(found, {"x": X})
    np.testing.assert_allclose(actual, expected, atol=0.05)


def test_with_every_layer_high_it_is_the_model_itself() -> None:
    made = mixed_models()
    found = onnx.ModelProto.FromString(b"".join(made.parts(frozenset({0, 1, 2}))))
    assert found == three()


def test_inputs_that_the_model_cannot_be_run_with_are_told() -> None:
    with pytest.raises(EngineFailure, match="could not be run to record values for int8"):
        QuantizedModels(three(), Path(), {}, [{"x": np.zeros((3, 3), np.float32)}])
    with pytest.raises(UsageError, match="no inputs to calibrate"):
        QuantizedModels(three(), Path(), {}, [])


def test_feeds_are_read_one_by_one_and_end() -> None:
    feeds = CalibrationInputs([{"x": X}, {"x": -X}])
    assert len(feeds) == len(list(feeds)) == 2
    assert feeds.get_next() is not None
    assert feeds.get_next() is not None
    assert feeds.get_next() is None
