"""What a change may do to the inputs and outputs of a model: nothing that whoever uses it would notice."""

import onnx
import pytest
from onnx import TensorProto, helper

from biopsy.questions.workarounds.question import interface_objection


@pytest.fixture
def model() -> onnx.ModelProto:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    return helper.make_model(helper.make_graph(nodes, "g", [info("x")], [info("b"), info("a")]))


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def test_outputs_may_be_added_behind_the_others_by_a_mark_alone(model: onnx.ModelProto) -> None:
    after = copy_of(model)
    after.graph.output.add(name="c")
    assert interface_objection(model, after, may_add=True) is None
    assert interface_objection(model, after, may_add=False) == "it has more outputs"


@pytest.mark.parametrize("order", [(1, 0), (0,), (1,)])
def test_outputs_stay_in_their_places(model: onnx.ModelProto, order: tuple[int, ...]) -> None:
    after = copy_of(model)
    del after.graph.output[:]
    after.graph.output.extend(model.graph.output[place] for place in order)
    assert interface_objection(model, after, may_add=True) == "it has other outputs, or in another order"


def test_types_and_shapes_stay_as_they_were(model: onnx.ModelProto) -> None:
    after = copy_of(model)
    after.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 3
    assert interface_objection(model, after, may_add=True) == "output 'a' is of another type"
    after = copy_of(model)
    after.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    assert interface_objection(model, after, may_add=True) == "it has other inputs"
