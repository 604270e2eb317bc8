"""The caster: what is rounded and what is not, where casts stand, and what stays as it is."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from benchmarks import models as bench
from biopsy.errors import UsageError
from biopsy.questions.precision.formats import BF16, FP8_E4M3FN, FP8_E5M2, FP16, FP32, rounded
from biopsy.questions.precision.mixed_models import CastModels
from support.control_flow import branching, looping, scanning
from support.models import BOOL, INT64, info, model, weight
from support.precisions import overflowing

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))
X = np.array([[0.1, -2.7], [3.3, 1e-3]], np.float32)


def ops(made: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in made.graph.node)


def types(made: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True).graph
    return {entry.name: entry.type.tensor_type.elem_type for entry in (*inferred.value_info, *inferred.output)}


def two_layers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("Exp", ["a"], ["y"], name="exp"),
    ]
    return model(nodes, [info("x")], [info("y")], [weight("w", 0.3)], value_info=[info("a")])


# Rounding


@pytest.mark.parametrize("low", [FP16, BF16])
@pytest.mark.parametrize("optimized", [True, False])
def test_emulation_rounds_inputs_weights_and_outputs_and_nothing_inside(cast, run, low, optimized) -> None:
    product = rounded(rounded(X, low) * rounded(np.float32([0.3]), low), low)
    (found,) = run(cast(two_layers(), low), {"x": X}, optimized=optimized)
    np.testing.assert_array_equal(found, rounded(np.exp(product), low))


@pytest.mark.parametrize("low", [FP8_E4M3FN, FP8_E5M2])
def test_fp8_is_rounded_alike_and_ends_at_its_largest_number(cast, run, low) -> None:
    made = two_layers()
    made.opset_import[0].version = 19
    x = np.array([[1e6, -2.7], [3.3, 1e-9]], np.float32)
    product = rounded(rounded(x, low) * rounded(np.float32([0.3]), low), low)
    (found,) = run(cast(made, low), {"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, rounded(np.minimum(np.exp(product), low.largest), low))


def test_a_high_layer_reads_what_a_low_one_has_rounded_and_keeps_its_own_precision(cast, run) -> None:
    (found,) = run(cast(two_layers(), FP16, high={1}), {"x": X})
    product = rounded(rounded(X, FP16) * rounded(np.float32([0.3]), FP16), FP16)
    np.testing.assert_allclose(found, np.exp(product), rtol=1e-6)


def test_all_high_is_the_model_itself(cast) -> None:
    found = cast(two_layers(), FP16, high={0, 1})
    assert found.SerializeToString(deterministic=True) == two_layers().SerializeToString(deterministic=True)


def test_what_only_moves_values_rounds_nothing_and_is_no_layer(cast, run) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Exp", ["r"], ["e"]),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")])
    mixed_models = CastModels(made, FP16, FP32, "emulate", Path(), {})
    assert [layer.op_type for layer in mixed_models.layers] == ["Exp"]
    (found,) = run(cast(made, FP16, high={0}), {"x": X})
    np.testing.assert_allclose(found, -np.exp(np.maximum(X.T, 0)), rtol=1e-6)


def test_a_weight_that_several_read_is_rounded_once(cast) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")], [weight("w", 0.3)])
    casts = [node for node in cast(made, FP16, high={2}).graph.node if node.op_type == "Cast"]
    assert sum(node.input[0] == "w" for node in casts) == 1
    native = cast(made, FP16, "native", high={2})
    assert {found.name: found.data_type for found in native.graph.initializer} == {"w": 1, "w_fp16": 10}


def test_a_weight_that_only_low_layers_read_is_stored_in_the_low_type_alone(cast) -> None:
    native = cast(two_layers(), FP16, "native")
    assert {found.name: found.data_type for found in native.graph.initializer} == {"w_fp16": 10}
    onnx.checker.check_model(native, full_check=True)


# Native


def test_native_casts_only_where_precisions_meet(cast) -> None:
    nodes = [helper.make_node("Exp", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(6)]
    made = model(nodes, [info("t0")], [info("t6")], value_info=[info(f"t{i}") for i in range(1, 6)])
    found = cast(made, FP16, "native", high={3})
    assert [node.op_type for node in found.graph.node] == [
        "Cast",
        *["Exp"] * 3,
        "Cast",
        "Exp",
        "Cast",
        *["Exp"] * 2,
        "Cast",
    ]
    assert types(found)["t6"] == TensorProto.FLOAT
    declared = {entry.name: entry.type.tensor_type.elem_type for entry in found.graph.value_info}
    assert declared == {name: elem for name, elem in types(found).items() if name != "t6"}


def test_a_model_in_fp16_can_have_layers_raised(cast, run) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "v"], ["y"])]
    weights = [weight("w", 1e4, dtype="float16"), weight("v", 1e-4, dtype="float16")]
    made = model(nodes, [info("x", elem=10)], [info("y", elem=10)], weights)
    x = np.full((2, 2), 30, np.float16)
    for form in ("emulate", "native"):
        np.testing.assert_allclose(run(cast(made, FP16, form, high={0, 1}), {"x": x})[0], 30, rtol=1e-3)
    assert np.isinf(run(cast(made, FP16, "emulate"), {"x": x})[0]).all()
    lowered = cast(made, FP16, "native")
    assert lowered.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


def test_high_may_be_fp16_and_low_fp8(cast, run) -> None:
    made = two_layers()
    made.opset_import[0].version = 19
    (found,) = run(cast(made, FP8_E4M3FN, high={1}, to=FP16), {"x": X})
    product = rounded(rounded(X, FP8_E4M3FN) * rounded(np.float32([0.3]), FP8_E4M3FN), FP8_E4M3FN)
    np.testing.assert_array_equal(found, rounded(np.exp(product), FP16))


def test_no_operator_computes_in_fp8() -> None:
    with pytest.raises(UsageError, match="no --native form"):
        CastModels(two_layers(), FP8_E5M2, FP32, "native", Path(), {})


def test_an_opset_without_the_cast_is_told() -> None:
    with pytest.raises(UsageError, match="since opset 19, and the model has opset 17"):
        CastModels(two_layers(), FP8_E5M2, FP32, "emulate", Path(), {})


# What stays


@pytest.mark.parametrize("form", ["emulate", "native"])
def test_nodes_and_inputs_without_a_low_type_stay(cast, run, form) -> None:
    nodes = [
        helper.make_node("Range", ["zero", "four", "one"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["r4"]),
        helper.make_node("Add", ["x", "r4"], ["a"]),
        helper.make_node("Resize", ["a", "", "scales"], ["z"], mode="linear"),
        helper.make_node("TopK", ["z", "k"], ["values", "places"]),
        helper.make_node("Cast", ["places"], ["f"], to=1),
        helper.make_node("Mul", ["values", "f"], ["y"]),
        helper.make_node("Greater", ["y", "zero"], ["positive"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1),
    ]
    weights = [
        weight("zero", 0, shape=()), weight("four", 4, shape=()), weight("one", 1, shape=()),
        weight("shape", 1, 1, 2, 2, dtype="int64"), weight("scales", 1, 1, 2, 2), weight("k", 2, dtype="int64"),
    ]  # fmt: skip
    outputs = [info("y", (1, 1, 4, 2)), info("positive", (1, 1, 4, 2), BOOL), info("best", (1, 1, 4, 2), INT64)]
    made = model(nodes, [info("x", (1, 1, 2, 2))], outputs, weights)
    found = cast(made, FP16, form)
    onnx.checker.check_model(found, full_check=True)
    resize = next(node for node in found.graph.node if node.op_type == "Resize")
    assert resize.input[2] == "scales"
    ranges = next(node for node in found.graph.node if node.op_type == "Range")
    assert list(ranges.input) == ["zero", "four", "one"]
    x = X.reshape(1, 1, 2, 2)
    for expected, actual in zip(run(made, {"x": x}), run(found, {"x": x}), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("opset", [9, 14, 15, 17])
def test_statistics_of_a_normalization_keep_their_type_where_onnx_lets_them(cast, run, opset) -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    weights = [weight(name, *values) for name, values in (("s", (1, 2)), ("b", (0, 1)), ("m", (0.1, 0)), ("v", (1, 3)))]
    made = model([node], [info("x")], [info("y")], weights, opset=opset)
    found = cast(made, FP16, "native")
    onnx.checker.check_model(found, full_check=True)
    kept = {entry.name for entry in found.graph.initializer if entry.data_type == 1}
    assert kept == {9: set(), 14: {"m", "v"}}.get(opset, {"s", "b", "m", "v"})
    np.testing.assert_allclose(run(found, {"x": X})[0], run(made, {"x": X})[0], rtol=4e-3, atol=4e-3)


def test_new_names_are_those_of_no_other_tensor_or_node(cast, run) -> None:
    made = two_layers()
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = made.graph.value_info[0].name = "x_fp16"
    made.graph.node[1].name = "w_fp16_cast"
    for form in ("emulate", "native"):
        found = cast(made, FP16, form)
        names = [node.name for node in found.graph.node]
        assert len(set(names)) == len(names)
        onnx.checker.check_model(found, full_check=True)
        np.testing.assert_allclose(run(found, {"x": X})[0], run(made, {"x": X})[0], rtol=4e-3)


def test_what_stays_is_told_with_its_reason() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("FusedThing", ["e"], ["y"], domain="com.example"),
        helper.make_node("Det", ["x"], ["d"]),
    ]
    made = model(nodes, [info("x")], [info("y", None), info("d", ())], domains=["com.example"])
    mixed_models = CastModels(made, BF16, FP32, "native", Path(), {})
    assert mixed_models.stays == {"no schema of com.example.FusedThing is known": 1, "Det of opset 17 knows no bf16": 1}


# Bodies and functions


@pytest.mark.parametrize("form", ["emulate", "native"])
@pytest.mark.parametrize("make", [branching, looping, scanning])
def test_bodies_are_cast_and_may_read_tensors_of_another_precision(cast, run, make, form) -> None:
    made = make()
    feed = {"x": X, "c": np.array(True), "start": np.float32([0.1, 0.2])}
    feed = {entry.name: feed[entry.name] for entry in made.graph.input}
    if make is scanning:
        feed["x"] = np.float32([[0.1, 0.2], [0.3, 0.7], [1.1, 0.4]])
    elif make is looping:
        feed["x"] = X / 8
    mixed_models = CastModels(made, FP16, FP32, form, Path(), {})
    inner = [layer for layer in mixed_models.layers if layer.where]
    assert inner
    for high in (set(), {0}, set(range(1, len(mixed_models.layers)))):
        found = cast(made, FP16, form, high=high)
        onnx.checker.check_model(found, full_check=True)
        assert [entry.type for entry in found.graph.output] == [entry.type for entry in made.graph.output]
        for expected, actual in zip(run(made, feed), run(found, feed), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=2e-2)


def test_a_sum_in_a_loop_stops_where_fp16_does(cast, run) -> None:
    made = overflowing()
    mixed_models = CastModels(made, FP16, FP32, "emulate", Path(), {})
    at = next(layer for layer in mixed_models.layers if layer.name == "running_sum")
    assert at.label == "Loop 'loop' / body / Add 'running_sum'"
    made.graph.output.append(helper.make_tensor_value_info("t29", 1, [1]))
    loop = next(node for node in made.graph.node if node.name == "loop")
    made.graph.output[-1].name = loop.output[0]
    x = {"x": np.zeros((4, 8), np.float32)}
    assert run(cast(made, FP16), x)[1] == 2048
    assert run(cast(made, FP16, high={at.number}), x)[1] == 3000


def test_functions_are_put_in_place_of_their_calls_and_cast(cast, run) -> None:
    body = [
        helper.make_node("Mul", ["a", "a"], ["b"], name="square"),
        helper.make_node("Exp", ["b"], ["c"], name="exp"),
    ]
    function = helper.make_function("ours", "SquareExp", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("SquareExp", ["x"], ["h"], domain="ours"), helper.make_node("Sin", ["h"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], functions=[function], domains=["ours"])
    found = cast(made, FP16, "emulate")
    assert not found.functions
    square = rounded(rounded(X, FP16) ** 2, FP16)
    (actual,) = run(found, {"x": X})
    with np.errstate(over="ignore"):
        expected = rounded(np.sin(rounded(np.exp(square), FP16)), FP16)
    np.testing.assert_allclose(actual, expected, rtol=1e-3)


# Every model


FILLED = ("densenet121", "inception_v2", "shufflenet", "squeezenet")


def named(name: str) -> onnx.ModelProto:
    """A model of the benchmarks, of the onnx package, or the latter with weights that are not all one: "filled"."""
    if name in bench.KINDS:
        return bench.KINDS[name](60)
    found = onnx.load(LIGHT[0].with_name(f"light_{name.removeprefix('filled ')}.onnx"))
    return filled(found) if name.startswith("filled ") else found


def filled(made: onnx.ModelProto) -> onnx.ModelProto:
    """Random weights in place of constants, none that makes values grow from layer to layer."""
    choice = np.random.default_rng(2)
    shapes = {found.name: numpy_helper.to_array(found) for found in made.graph.initializer}
    positive = {name for node in made.graph.node if node.op_type == "BatchNormalization" for name in node.input[1::3]}
    kept = []
    for node in made.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(shapes[node.input[0]])
        values = choice.normal(0, max(1, np.prod(shape[1:])) ** -0.5, shape)
        values = np.ones(shape) if node.output[0] in positive else values
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del made.graph.node[:]
    made.graph.node.extend(kept)
    made.ir_version = 4
    return made


CONSTANT = {path.stem.removeprefix("light_") for path in LIGHT}
"""All their weights are one, so that values grow and most of them overflow in fp16."""

EVERY = [*sorted(CONSTANT), *(f"filled {name}" for name in FILLED), *bench.KINDS]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["emulate", "native"])
@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_half_of_any_model_is_sound(name, form, seed) -> None:
    _is_sound(named(name), form, seed, may_overflow=name in CONSTANT)


@pytest.mark.parametrize("form", ["emulate", "native"])
@pytest.mark.parametrize("name", ["squeezenet", "filled squeezenet", "transformer", "control flow"])
def test_all_and_a_half_of_the_usual_models_are_sound(name, form) -> None:
    _is_sound(named(name), form, None, may_overflow=name in CONSTANT)
    _is_sound(named(name), form, 5, may_overflow=name in CONSTANT)


def _is_sound(made: onnx.ModelProto, form: str, seed: int | None, *, may_overflow: bool) -> None:
    """It loads and runs, is near the original, and casting it again changes nothing. ``seed`` chooses a half."""
    mixed_models = CastModels(made, FP16, FP32, form, Path(), {})
    choice = np.random.default_rng(seed)
    high = {n for n in range(len(mixed_models.layers)) if seed is not None and choice.random() < 0.5}
    found = onnx.ModelProto.FromString(b"".join(mixed_models.parts(frozenset(high))))
    onnx.checker.check_model(found, full_check=True)
    again = CastModels(found, FP16, FP32, form, Path(), {})
    assert len(again.layers) == len(mixed_models.layers)
    twice = onnx.ModelProto.FromString(b"".join(again.parts(frozenset(high))))
    assert twice.SerializeToString(deterministic=True) == found.SerializeToString(deterministic=True)
    _casts_do_not_cancel(found, form)
    _is_near(made, found, may_overflow=may_overflow)


def _casts_do_not_cancel(found: onnx.ModelProto, form: str) -> None:
    """No tensor is cast twice to one type; in the native form no Cast reads what a Cast gives."""
    casts = [node for node in found.graph.node if node.op_type == "Cast"]
    kinds = Counter((node.input[0], node.attribute[0].i) for node in casts)
    assert max(kinds.values(), default=0) <= 1
    if form == "native":
        assert not {node.input[0] for node in casts} & {node.output[0] for node in casts}


def _is_near(made: onnx.ModelProto, found: onnx.ModelProto, *, may_overflow: bool) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    sessions = [
        onnxruntime.InferenceSession(each.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for each in (made, found)
    ]
    choice = np.random.default_rng(1)
    feed = {
        entry.name: choice.normal(size=[dim if isinstance(dim, int) else 1 for dim in entry.shape]).astype(np.float32)
        for entry in sessions[0].get_inputs()
    }
    for expected, actual in zip(sessions[0].run(None, feed), sessions[1].run(None, feed), strict=True):
        if may_overflow and not np.isfinite(actual).all():
            continue
        scale = max(1e-3, float(np.abs(expected).max()))
        depth = len(made.graph.node) ** 0.5
        assert np.abs(actual - expected).max() <= 16 * depth * FP16.rounding * scale
