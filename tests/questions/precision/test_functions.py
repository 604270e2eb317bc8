"""Calls of local functions are replaced by the nodes of the function."""

import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.questions.precision.plan import without_functions
from support.models import chain, info, model


def calling(body: list[onnx.NodeProto]) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "F", ["a"], ["b"], body, opsets)
    nodes = [helper.make_node("F", ["x"], ["y"], domain="local", name="call")]
    return model(nodes, [info("x")], [info("y")], functions=[function], domains=["local"])


def test_a_model_without_calls_is_itself() -> None:
    made = chain(2)
    assert without_functions(made) is made


def test_the_nodes_of_a_function_become_layers_of_the_graph() -> None:
    body = [helper.make_node("Exp", ["a"], ["e"]), helper.make_node("Neg", ["e"], ["b"])]
    found = without_functions(calling(body))
    assert [node.op_type for node in found.graph.node] == ["Exp", "Neg"]
    assert [each.name for each in found.graph.output] == ["y"]


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(errors.ModelError, match="cannot be inlined: F"):
        without_functions(calling([helper.make_node("F", ["a"], ["b"], domain="local")]))
