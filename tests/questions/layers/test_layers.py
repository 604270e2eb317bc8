"""Which nodes are layers, and what they are called."""

import re

import numpy as np
import pytest
from onnx import helper, numpy_helper

from biopsy.model.index import ModelIndex, index_bytes
from biopsy.questions.layers.question import layer_node, layers_of
from support import control_flow
from support.models import info, model, weight


def example() -> ModelIndex:
    value = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value, name="constant"),
        helper.make_node("Mul", ["x", "w"], ["scaled"], name="block/scale"),
        helper.make_node("Add", ["scaled", "c"], ["y"]),
    ]
    return index_bytes(model(nodes, [info("x")], [info("y")], [weight("w", 2.0)]).SerializeToString())


def test_every_node_but_a_constant_is_a_layer() -> None:
    assert [node.op_type for node in layers_of(example())] == ["Mul", "Add"]


@pytest.mark.parametrize(
    ("pattern", "operators"),
    [("^block/", ["Mul"]), ("Add", ["Add"]), ("^y$", ["Add"]), ("#2", ["Add"]), ("Constant", []), ("nobody", [])],
)
def test_layers_are_chosen_by_name_operator_or_output(pattern: str, operators: list[str]) -> None:
    assert [node.op_type for node in layers_of(example(), re.compile(pattern))] == operators


def test_weights_are_no_inputs_of_a_layer() -> None:
    index = example()
    mul = layer_node(index, index.nodes[1])
    assert (mul.number, mul.name, mul.label) == (1, "block/scale", "Mul 'block/scale'")
    assert (mul.inputs, mul.outputs) == (("x",), ("scaled",))


def test_what_bodies_capture_is_an_input_of_the_layer() -> None:
    index = index_bytes(control_flow.branching().SerializeToString())
    (branch,) = (node for node in index.nodes if node.op_type == "If")
    captured = {index.names[tensor] for tensor in branch.reads if tensor not in index.weights}
    assert set(layer_node(index, branch).inputs) == captured and len(captured) > 1
