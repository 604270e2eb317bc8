"""Types of tensors that a candidate no longer computes: declared, inferred, else recorded."""

import numpy as np
import pytest
from onnx import helper

from biopsy.model import parts
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.recording.types import CutTypes
from support.models import INT64, info, model, weight


def reshaped() -> ModelIndex:
    """Neg has the type that the input declares; the rank of what Reshape computes depends on values."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Reshape", ["a", "to"], ["b"], name="reshape"),
        helper.make_node("Abs", ["b"], ["c"], name="abs"),
        helper.make_node("Reshape", ["c", "flat"], ["y"], name="flatten"),
    ]
    flat = weight("flat", 12, dtype="int64")
    made = model(nodes, [info("x", (2, 6)), info("to", ("R",), INT64)], [info("y", (12,))], [flat])
    return index_bytes(made.SerializeToString())


RECORDED = ValuesInMemory([{"a": np.zeros((2, 6), np.float32), "b": np.zeros((3, 4), np.float32)}])


def kind(index: ModelIndex, types: CutTypes, name: str) -> TensorType | None:
    return types.tensor_type(index.ids[name])


def test_what_the_model_tells_is_asked_of_no_recording() -> None:
    index = reshaped()
    assert kind(index, CutTypes(index, ValuesInMemory()), "a") == TensorType(1, (2, 6))


def test_a_rank_that_only_values_tell_is_that_of_the_recorded_ones() -> None:
    index = reshaped()
    assert kind(index, CutTypes(index, RECORDED), "b") == TensorType(1, (3, 4))


def test_an_output_does_not_declare_sizes_that_only_some_inputs_have() -> None:
    index = reshaped()
    end = CutTypes(index, RECORDED).end(index.ids["b"])
    assert end is not None and parts.tensor_type(end) == TensorType(1, (None, None))


def test_behind_a_recorded_rank_inference_goes_on() -> None:
    """Nothing recorded ``c``, but it has the rank of ``b``."""
    index = reshaped()
    found = kind(index, CutTypes(index, RECORDED), "c")
    assert found is not None and found.elem == 1 and found.shape is not None and len(found.shape) == 2


def test_where_nobody_knows_the_rank_the_tensor_cannot_stand_at_a_border() -> None:
    index = reshaped()
    assert not CutTypes(index, ValuesInMemory()).is_sufficient(index.ids["b"])
    assert CutTypes(index, RECORDED).is_sufficient(index.ids["b"])


def test_recorded_types_come_first_where_that_is_asked() -> None:
    index = reshaped()
    wider = ValuesInMemory([{"a": np.zeros((2, 6), np.float64)}])
    assert kind(index, CutTypes(index, wider), "a") == TensorType(1, (2, 6))
    assert kind(index, CutTypes(index, wider, recorded_first=True), "a") == TensorType(11, (2, 6))


def test_a_weight_has_its_own_type() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    index = index_bytes(
        model(nodes, [info("x")], [info("y")], [weight("w", 1, 2, shape=(1, 2), dtype="float16")]).SerializeToString()
    )
    assert kind(index, CutTypes(index, ValuesInMemory()), "w") == TensorType(10, (1, 2))


@pytest.mark.parametrize(("left", "right", "agree"), [("x", "a", True), ("x", "b", False), ("to", "x", False)])
def test_tensors_agree_if_type_and_shape_are_known_to_be_the_same(left: str, right: str, agree: bool) -> None:
    index = reshaped()
    assert CutTypes(index, RECORDED).agree(index.ids[left], index.ids[right]) is agree


def test_open_dimensions_with_the_same_symbol_agree() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    index = index_bytes(model(nodes, [info("x", ("N", 3))], [info("y", ("N", 3))]).SerializeToString())
    assert CutTypes(index, ValuesInMemory()).agree(index.ids["x"], index.ids["y"])


def test_elements_are_counted_without_a_run_and_an_open_dimension_as_one() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    index = index_bytes(model(nodes, [info("x", ("N", 3))], [info("y", ("N", 3))]).SerializeToString())
    assert CutTypes(index, ValuesInMemory()).elements(index.ids["y"]) == 3
