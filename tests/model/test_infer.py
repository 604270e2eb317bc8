"""Types of tensors between nodes, told without the weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy.model import infer, parts
from biopsy.model.tensor_type import SequenceType, TensorType, spaced
from support.measured import cpu_seconds


def model_of(nodes, inputs, outputs, weights=(), opset: int = 17, **more) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)


def tensor(name: str, shape, elem: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def test_symbolic_dimensions_stay_symbolic() -> None:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Transpose", ["r"], ["y"])],
        [tensor("x", ["N", 3])],
        [tensor("y", None)],
    )
    found = infer.infer_types(model)
    assert found["r"] == TensorType(1, ("N", 3))
    assert found["y"] == TensorType(1, (3, "N"))


def test_shapes_are_computed_from_small_weights() -> None:
    model = model_of(
        [helper.make_node("Reshape", ["x", "to"], ["y"])],
        [tensor("x", [4, 6])],
        [tensor("y", None)],
        [numpy_helper.from_array(np.array([2, -1], np.int64), "to")],
    )
    assert infer.infer_types(model)["y"] == TensorType(1, (2, 12))


def test_large_weights_count_by_their_type_alone() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", ["N", 64])],
        [tensor("y", None)],
        [numpy_helper.from_array(np.zeros((64, 128), np.float32), "w")],
    )
    light = infer.without_weights(model)
    assert light.ByteSize() < 200
    assert infer.infer_types(model)["y"] == TensorType(1, ("N", 128))
    assert infer.infer_types(model)["w"] == TensorType(1, (64, 128))


def test_external_shape_tensors_cost_only_the_shape() -> None:
    model = model_of(
        [helper.make_node("Reshape", ["x", "to"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        [tensor("x", [4, 6])],
        [tensor("z", None)],
        [numpy_helper.from_array(np.array([2, -1], np.int64), "to")],
    )
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="gone.bin")
    found = infer.infer_types(model)
    assert found["z"].elem == TensorProto.FLOAT
    assert found["to"] == TensorType(7, (2,))


def test_weights_in_constants_and_bodies_are_left_out() -> None:
    big = numpy_helper.from_array(np.zeros((64, 64), np.float32), "big")
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "big"], ["inner"])], "body", [], [tensor("inner", None)], [big]
    )
    model = model_of(
        [
            helper.make_node("Constant", [], ["c"], value=big),
            helper.make_node("If", ["flag"], ["picked"], then_branch=body, else_branch=body),
            helper.make_node("Add", ["picked", "c"], ["y"]),
        ],
        [tensor("x", [64, 64]), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", None)],
    )
    before = model.SerializeToString(deterministic=True)
    assert infer.without_weights(model).ByteSize() < 1000
    assert infer.infer_types(model)["y"] == TensorType(1, (64, 64))
    assert model.SerializeToString(deterministic=True) == before


def test_sequences_are_no_tensors_but_have_a_value_info() -> None:
    model = model_of(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["s"]), helper.make_node("SequenceLength", ["s"], ["n"])],
        [tensor("x", [2])],
        [tensor("n", [], TensorProto.INT64)],
    )
    assert "s" not in infer.infer_types(model)
    infos = infer.infer_value_infos(model.SerializeToString())
    assert onnx.ValueInfoProto.FromString(infos["s"]).type.HasField("sequence_type")
    assert parts.name_of(infos["s"]) == "s"


def test_local_functions_are_looked_into() -> None:
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = model_of(
        [helper.make_node("Twice", ["x"], ["t"], domain="mine"), helper.make_node("Relu", ["t"], ["y"])],
        [tensor("x", [5])],
        [tensor("y", None)],
        functions=[function],
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert infer.infer_types(model)["t"] == TensorType(1, (5,))


def test_outputs_of_unknown_operators_are_missing_without_an_error() -> None:
    model = model_of(
        [helper.make_node("Odd", ["x"], ["t"], domain="odd"), helper.make_node("Relu", ["t"], ["y"])],
        [tensor("x", [5])],
        [tensor("y", [5])],
    )
    found = infer.infer_types(model)
    assert "t" not in found
    assert found["y"] == TensorType(1, (5,))


def test_types_that_contradict_each_other_are_no_error() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [5])],
        [tensor("y", [9, 9])],
        [numpy_helper.from_array(np.zeros(3, np.int64), "w")],
    )
    assert infer.infer_types(model)["x"] == TensorType(1, (5,))


def test_bytes_that_are_no_model_have_no_types() -> None:
    assert infer.infer_value_infos(b"\xff\xff\xff") == {}


def test_initializers_that_are_inputs_keep_their_type() -> None:
    model = model_of(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [tensor("x", [2048]), tensor("w", [2048])],
        [tensor("y", None)],
        [numpy_helper.from_array(np.zeros(2048, np.float32), "w")],
    )
    model.ir_version = 3
    assert [value.name for value in infer.without_weights(model).graph.input] == ["x", "w"]
    assert infer.infer_types(model)["y"] == TensorType(1, (2048,))


def test_a_hundred_megabytes_of_weights_cost_nothing() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", ["N", 5000])],
        [tensor("y", None)],
        [numpy_helper.from_array(np.zeros((5000, 5000), np.float32), "w")],
    )
    assert cpu_seconds(lambda: infer.infer_types(model)) < 0.5


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = Add(x, x)", False),
        ("a = Cast<to = 1>(x) b = Sqrt(a) y = Cast<to = 6>(b)", True),
        ("y = Mine(x)", False),
        ("a = Mine(x) y = Cast<to = 6>(a)", True),  # it is not known what a is
        ("a = Equal(x, x) b = Not(a) y = Cast<to = 6>(b)", False),
    ],
)
def test_floats_are_noticed_between_integers_too(nodes: str, expected: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (int32[2] x) => (int32[2] y) {{ {nodes} }}'
    assert infer.has_floats(onnx.parser.parse_model(text).SerializeToString()) == expected


def test_a_type_in_a_sentence_has_no_brackets_without_a_known_number_of_dimensions() -> None:
    shapes = (None, (), (1, "N", None))
    assert [spaced(TensorType(1, shape)) for shape in shapes] == ["float32", "float32 []", "float32 [1, N, ?]"]
    assert spaced(SequenceType(TensorType(1, None))) == "sequence of float32"
