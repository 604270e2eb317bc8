"""What stands at the border of a set of nodes: types, and constants for what looks like a shape."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.slice import NO_CHANGE, Subset, candidate_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.recording.dependence import independent_of_inputs
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.recording.types import Borders, CutTypes, as_constant, is_shape_like
from support.models import INT64, info, model, weight


def flattening() -> ModelIndex:
    """0 Relu, 1 Shape, 2 Constant, 3 Exp of a weight, 4 Reshape by 1, 5 Mul by 2, 6 Add of 3."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32([2]), "any")),
        helper.make_node("Exp", ["w"], ["e"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Mul", ["b", "c"], ["m"]),
        helper.make_node("Add", ["m", "e"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")], [weight("w", 0.0, shape=(1,))])
    return index_bytes(made.SerializeToString())


def sample(value: float, size: int = 2) -> dict[str, np.ndarray]:
    filled = np.full((2, size), value, np.float32)
    return {
        **dict.fromkeys(("x", "a", "b", "m", "y"), filled),
        "s": np.array([2, size]),
        "e": np.ones(1, np.float32),
    }


def cut_out(index: ModelIndex, nodes: tuple[int, ...], samples: list[dict[str, np.ndarray]]) -> onnx.ModelProto:
    recorded = ValuesInMemory(samples)
    borders = Borders(
        index=index,
        types=CutTypes(index, recorded),
        recorded=recorded,
        independent=independent_of_inputs(index),
    )
    subset = Subset(index, nodes)
    made = onnx.ModelProto.FromString(candidate_bytes(subset, borders.boundary(subset, subset.sinks)))
    onnx.checker.check_model(made, full_check=True)
    return made


def ends(made: onnx.ModelProto) -> tuple[list[str], dict[str, list[float]]]:
    weights = {each.name: numpy_helper.to_array(each).ravel().tolist() for each in made.graph.initializer}
    return [each.name for each in made.graph.input], weights


def test_what_looks_like_a_shape_is_frozen_and_the_rest_is_fed() -> None:
    assert ends(cut_out(flattening(), (4,), [sample(1), sample(3)])) == (["a"], {"s": [2, 2]})


def test_a_shape_that_differs_between_samples_is_fed() -> None:
    assert ends(cut_out(flattening(), (4,), [sample(1), sample(3, size=5)])) == (["a", "s"], {})


def test_what_a_constant_node_writes_stays_a_constant() -> None:
    assert ends(cut_out(flattening(), (5,), [sample(1)])) == (["b"], {"c": [2]})


def test_what_depends_on_no_input_is_frozen_whatever_its_type() -> None:
    assert ends(cut_out(flattening(), (6,), [sample(1)])) == (["m"], {"e": [1]})


def test_the_whole_model_keeps_what_it_declares() -> None:
    index = flattening()
    whole = Subset(index, tuple(range(len(index.nodes))))
    assert cut_out(index, whole.nodes, [sample(1)]).SerializeToString() == candidate_bytes(whole, NO_CHANGE)


def test_integers_of_32_and_64_bits_and_booleans_look_like_shapes() -> None:
    assert [elem for elem in range(1, 27) if is_shape_like(TensorType(elem, None))] == [6, INT64, 9]
    assert not is_shape_like(None)


def test_a_value_becomes_a_constant_of_its_name_type_and_shape() -> None:
    value = np.arange(6, dtype=np.int64).reshape(2, 3)
    span = as_constant("shape", value)
    assert span is not None
    tensor = onnx.TensorProto.FromString(span)
    assert tensor.name == "shape" and np.array_equal(numpy_helper.to_array(tensor), value)


def test_strings_and_large_values_are_no_constants() -> None:
    assert as_constant("s", np.array(["a"])) is None
    assert as_constant("big", np.zeros((16 << 20) + 1, np.int8)) is None
