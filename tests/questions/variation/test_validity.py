"""Whether a changed model is as valid as the one that it was made from."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.questions.variation.elements import dtype_features
from biopsy.questions.variation.features import FedModel
from biopsy.questions.variation.shapes import rank_features, size_features
from biopsy.questions.variation.validity import Validity
from support.models import info, model, weight
from support.varied_models import softmax


@pytest.fixture(scope="module")
def validity() -> Iterator[Validity]:
    with closing(Validity(softmax())) as made:
        yield made


def changed(**dims: int) -> onnx.ModelProto:
    made = softmax()
    for axis, size in dims.items():
        made.graph.input[0].type.tensor_type.shape.dim["abc".index(axis)].dim_value = size
    return made


def test_what_follows_from_a_change_is_told(validity: Validity):
    told = validity.validated(changed(a=7, b=8))
    assert told is not None
    assert [dim.dim_value for dim in told.graph.output[0].type.tensor_type.shape.dim] == [7, 8, 3]


def test_shapes_that_do_not_agree_are_refused(validity: Validity):
    assert validity.validated(changed(c=5)) is None


def test_types_that_an_operator_does_not_take_are_refused(validity: Validity):
    made = softmax()
    del made.graph.node[1:], made.graph.initializer[:]
    made.graph.node[0].output[0] = "y"
    assert validity.validated(made) is not None
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    assert validity.validated(made) is None


def test_a_model_that_the_checker_refuses_is_refused(validity: Validity):
    made = softmax()
    made.graph.node[0].attribute.append(helper.make_attribute("axes", [1]))
    assert validity.validated(made) is None


def test_an_output_whose_shape_onnx_cannot_infer_keeps_its_rank():
    nodes = [helper.make_node("MaxUnpool", ["x", "i", "sizes"], ["y"], kernel_shape=[2, 2])]
    weights = [weight("i", np.arange(4).reshape(1, 1, 2, 2)), weight("sizes", np.int64([1, 1, 5, 5]))]
    made = model(nodes, [info("x", (1, 1, 2, 2))], [info("y", (None,) * 4)], weights)
    changed = onnx.ModelProto.FromString(made.SerializeToString())
    changed.graph.initializer[0].CopyFrom(weight("i", np.arange(4)[::-1].reshape(1, 1, 2, 2)))
    with closing(Validity(made)) as of_model:
        told = of_model.validated(changed)
    assert told is not None and len(told.graph.output[0].type.tensor_type.shape.dim) == 4


def test_nothing_is_asked_that_was_not_true_before():
    broken = changed(c=5)
    with closing(Validity(broken)) as made:
        assert not made.is_strict
        assert made.validated(changed(c=6)) is not None


BROKEN = {
    "a shape that is declared otherwise": "g (float[4,8] x) => (float[4,9] y) { y = Relu(x) }",
    "a type that is declared otherwise": "g (float[4,8] x) => (double[4,8] y) { y = Relu(x) }",
    "one tensor that is computed twice": "g (float[4,8] x) => (float[4,8] y) { a = Relu(x) a = Tanh(x) y = Neg(a) }",
    "an attribute that is none": "g (float[4,8] x) => (float[4,8] y) { a = Relu<axes = 3>(x) y = Neg(a) }",
}


@pytest.mark.parametrize("graph", BROKEN.values(), ids=BROKEN)
def test_nothing_is_said_of_the_sizes_and_types_of_a_model_that_breaks_the_standard(graph: str):
    fed = FedModel(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), None)
    with closing(Validity(fed.model)) as made:
        assert [*size_features(fed, made), *dtype_features(fed, made, 8), *rank_features(fed, made)] == []


def test_sizes_of_a_model_that_says_no_shape_of_its_output_are_varied():
    fed = FedModel(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x) => (y) { y = Relu(x) }'),
        None,
    )
    with closing(Validity(fed.model)) as made:
        assert [feature.present for feature in size_features(fed, made)] == ["4", "8"]


def split(parts: int) -> onnx.ModelProto:
    """The shape inference of onnx 1.23 counts on as many outputs as ``num_outputs`` says."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Split", ["s"], ["y", "z"], num_outputs=parts)]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in "yz"]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 5])], ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def transposed(weight: list[int]) -> onnx.ModelProto:
    """That of onnx 1.21 and older counts on a weight of as many axes as the input has."""
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"])]
    start = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4])
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 5])
    held = helper.make_tensor("w", TensorProto.FLOAT, weight, [1.0] * math.prod(weight))
    graph = helper.make_graph(nodes, "g", [start], [end], [held])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def brings_onnx_down(model: onnx.ModelProto) -> bool:
    code = "import onnx, sys; onnx.shape_inference.infer_shapes(sys.stdin.buffer.read(), data_prop=True)"
    told = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
    return told.returncode < 0


def test_a_model_that_brings_onnx_down_is_not_valid_and_the_next_one_is_looked_at():
    pairs = [(split(2), split(1)), (transposed([2, 2, 2]), transposed([2, 2]))]
    model, odd = next((pair for pair in pairs if brings_onnx_down(pair[1])), (None, None))
    if odd is None:
        pytest.skip("no model is known that brings this onnx down")
    with closing(Validity(model)) as made:
        assert made.validated(odd) is None
        assert made.validated(model) is not None
