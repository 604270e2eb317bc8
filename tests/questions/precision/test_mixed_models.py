"""The candidates of a search over precisions: a model for every choice of layers that are high."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.errors import UsageError
from biopsy.questions.precision.formats import BF16, FP8_E5M2, FP16, FP32, RangeLoss
from biopsy.questions.precision.mixed_models import CastModels
from support.models import info, model, weight


def scaled(factor: float = 1e5) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("Exp", ["a"], ["y"], name="exp"),
    ]
    return model(nodes, [info("x")], [info("y")], [weight("w", factor, 1.0)])


def cast_models(made: onnx.ModelProto | None = None) -> CastModels:
    return CastModels(made or scaled(), FP16, FP32, "emulate", Path(), {})


def test_it_says_what_can_be_high_or_low() -> None:
    models = cast_models()
    assert [layer.name for layer in models.layers] == ["mul", "exp"]
    assert (models.low_name, models.high_name, models.form) == ("fp16", "float32", "emulate")


def test_the_same_choice_gives_the_same_bytes() -> None:
    models = cast_models()
    for high in ((), (0,), (1,), (0, 1)):
        assert b"".join(models.parts(frozenset(high))) == b"".join(models.parts(frozenset(high)))


def test_the_model_that_it_was_given_stays_as_it_is() -> None:
    made = scaled()
    before = made.SerializeToString(deterministic=True)
    cast_models(made).parts(frozenset())
    assert made.SerializeToString(deterministic=True) == before


def test_the_loss_of_range_is_that_of_weights_which_low_layers_read() -> None:
    models = cast_models()
    assert models.range_loss(frozenset({1})) == (RangeLoss("w", 2, 1, 0),)
    assert models.range_loss(frozenset({0})) == ()


def test_two_equal_precisions_are_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no higher precision"):
        CastModels(scaled(), FP16, FP16, "emulate", Path(), {})


def test_there_is_no_native_fp8() -> None:
    with pytest.raises(UsageError, match="no --native form"):
        CastModels(scaled(), FP8_E5M2, FP32, "native", Path(), {})


def test_a_layer_that_a_high_precision_does_not_know_stays_where_it_computes_in_it() -> None:
    made = model([helper.make_node("Det", ["x"], ["y"])], [info("x")], [info("y", ())])
    models = CastModels(made, FP16, BF16, "native", Path(), {})
    assert models.layers == [] and list(models.stays) == ["Det of opset 17 knows no bf16"]


def test_weights_referred_to_at_another_place_are_written_so() -> None:
    place = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    place.external_data.add(key="location", value="elsewhere.bin")
    models = CastModels(scaled(), FP16, FP32, "emulate", Path(), {"w": place.SerializeToString()})
    made = onnx.ModelProto.FromString(b"".join(models.parts(frozenset({0, 1}))))
    assert made.graph.initializer[0].external_data[0].value == "elsewhere.bin"
    assert np.prod(made.graph.initializer[0].dims) == 2
