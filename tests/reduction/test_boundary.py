"""What stands at the border of a candidate: fed or frozen, of which type, with which values."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from support.models import FLOAT, INT64, chain, info, model, weight
from support.predicates import has, names


def mixed() -> onnx.ModelProto:
    """The last node reads a float tensor of rank 2, one of rank 0, and an integer that is the same for every input."""
    nodes = [
        helper.make_node("Neg", ["x"], ["f"], name="neg"),
        helper.make_node("ReduceMax", ["x"], ["m"], name="max", keepdims=0),
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Add", ["f", "m"], ["g"], name="add"),
        helper.make_node("Expand", ["g", "s"], ["y"], name="expand"),
    ]
    return model(nodes, [info("x", (2, 3))], [info("y", (2, 3))])


SAMPLES = [{"x": np.full((2, 3), value, np.float32)} for value in (1.0, 2.0)]


def frozen(result: onnx.ModelProto) -> dict[str, object]:
    return {entry.name: numpy_helper.to_array(entry).tolist() for entry in result.graph.initializer}


def fed(result: onnx.ModelProto) -> dict[str, list[int]]:
    return {entry.name: [dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in result.graph.input}


def test_auto_feeds_floats_and_freezes_what_looks_like_a_shape(reducer) -> None:
    reducer(mixed(), has("expand"), inputs=SAMPLES)
    assert (fed(reducer.result), frozen(reducer.result)) == ({"g": [2, 3]}, {"s": [2, 3]})


def test_input_feeds_everything(reducer) -> None:
    reducer(mixed(), has("expand"), inputs=SAMPLES, cut="input")
    assert (fed(reducer.result), frozen(reducer.result)) == ({"s": [2], "g": [2, 3]}, {})


def test_a_scalar_keeps_its_rank(reducer) -> None:
    reducer(mixed(), has("add"), inputs=SAMPLES)
    assert fed(reducer.result) == {"f": [2, 3], "m": []}


def test_constant_freezes_everything_with_the_sample_that_fails(reducer) -> None:
    """The failure shows with the values of the second sample alone."""

    def fails(candidate: onnx.ModelProto) -> bool:
        constants = frozen(candidate)
        return "add" in names(candidate) and constants.get("m", 2.0) == 2.0

    reducer(mixed(), fails, inputs=SAMPLES, cut="constant")
    assert names(reducer.result) == ["add"]
    assert (fed(reducer.result), frozen(reducer.result)) == ({}, {"f": [[-2.0] * 3] * 2, "m": 2.0})


def test_quantized_activations_are_fed_not_frozen(reducer) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="dequantize"),
    ]
    weights = [weight("scale", 0.1, shape=()), weight("zero", 3, shape=(), dtype="uint8")]
    reducer(model(nodes, [info("x")], [info("y")], weights), has("dequantize"), inputs=SAMPLES[:1])
    assert list(fed(reducer.result)) == ["q"]


def test_weights_that_are_computed_stay_constants(reducer) -> None:
    """A dequantized weight that becomes an input would hide what an engine does with constant weights."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w8", "scale"], ["w"], name="dequantize"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul"),
    ]
    weights = [weight("scale", 0.5, shape=()), weight("w8", 2, 4, 6, 8, shape=(2, 2), dtype="int8")]
    reducer(model(nodes, [info("x")], [info("y")], weights), has("matmul"))
    assert frozen(reducer.result) == {"w": [[1.0, 2.0], [3.0, 4.0]]}


def test_types_that_inference_cannot_tell_come_from_a_recorded_run(reducer) -> None:
    made = chain(4)
    del made.graph.value_info[:]
    made.graph.input[0].type.tensor_type.ClearField("shape")  # the rank of everything is unknown now
    reducer(made, has("n2"), inputs=[{"t0": np.zeros((2, 5), np.float32)}])
    assert fed(reducer.result) == {"t2": [2, 5]}


def test_sequences_and_optionals_can_stand_at_the_border(reducer) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], name="split", axis=0, keepdims=1),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], name="concat", axis=0),
    ]
    reducer(model(nodes, [info("x")], [info("y")]), has("concat"))
    (entry,) = reducer.result.graph.input
    assert entry.type.WhichOneof("value") == "sequence_type"
    assert entry.type.sequence_type.elem_type.tensor_type.elem_type == FLOAT


def test_an_integer_input_of_the_original_stays_an_input(reducer) -> None:
    nodes = [helper.make_node("Neg", ["i"], ["j"], name="neg"), helper.make_node("Add", ["i", "j"], ["y"], name="add")]
    made = model(nodes, [info("i", elem=INT64)], [info("y", elem=INT64)])
    reducer(made, has("add"), inputs=[{"i": np.ones((2, 2), np.int64)}])
    assert fed(reducer.result) == {"i": [2, 2]}
    assert frozen(reducer.result) == {"j": [[-1, -1], [-1, -1]]}


def masked() -> onnx.ModelProto:
    """A mask that depends on the values of the input."""
    nodes = [
        helper.make_node("Greater", ["x", "hundred"], ["c"], name="greater"),
        helper.make_node("Where", ["c", "x", "hundred"], ["y"], name="where"),
    ]
    return model(nodes, [info("x")], [info("y")], [weight("hundred", 100.0)])


def test_a_mask_that_depends_on_values_is_not_frozen_with_made_up_ones(reducer) -> None:
    """It is the same for every random input, which says nothing of the user's."""
    reducer(masked(), has("where"))
    assert (fed(reducer.result).keys(), frozen(reducer.result)) == ({"x", "c"}, {"hundred": [100.0]})


def test_a_mask_is_frozen_with_the_values_that_the_user_gave(reducer) -> None:
    reducer(masked(), has("where"), inputs=[{"x": np.full((2, 2), 200, np.float32)}])
    assert frozen(reducer.result)["c"] == [[True, True], [True, True]]


def test_before_ir_version_4_frozen_cuts_are_inputs_too(reducer) -> None:
    made = mixed()
    made.ir_version = 3
    reducer(made, has("expand"), inputs=SAMPLES)
    assert frozen(reducer.result) == {"s": [2, 3]}
    assert sorted(fed(reducer.result)) == ["g", "s"]
    onnx.checker.check_model(reducer.result)


def test_an_output_may_be_an_input(reducer) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"], name="neg"), helper.make_node("Abs", ["n"], ["y"], name="abs")]
    made = model(nodes, [info("x"), info("through")], [info("y"), info("through")])
    feed = {name: np.ones((2, 2), np.float32) for name in ("x", "through")}
    reducer(made, has("abs"), no_reduce_outputs=True, inputs=[feed])
    assert names(reducer.result) == ["abs"]
    assert "through" in fed(reducer.result)
    onnx.checker.check_model(reducer.result)
