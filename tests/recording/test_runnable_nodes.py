"""Which nodes a reference engine may be asked to run."""

import onnx
from onnx import helper

from biopsy.model.index import index_bytes
from biopsy.recording.dependence import unknown_operators, without_dependents
from support.models import chain, info, model


def index_of(made: onnx.ModelProto):
    return index_bytes(made.SerializeToString())


def test_an_operator_of_a_private_domain_is_unknown() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Secret", ["a"], ["b"], domain="acme"),
        helper.make_node("Gelu", ["b"], ["y"], domain="com.microsoft"),
    ]
    made = model(nodes, [info("x")], [info("y")], domains=["acme", "com.microsoft"])
    assert unknown_operators(index_of(made)) == {1}


def test_a_function_of_the_model_is_known() -> None:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("acme", "Mine", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Mine", ["x"], ["y"], domain="acme")]
    made = model(nodes, [info("x")], [info("y")], functions=[function], domains=["acme"])
    assert unknown_operators(index_of(made)) == set()


def test_functions_that_call_each_other_without_end_are_never_run() -> None:
    opsets = [helper.make_opsetid("acme", 1)]
    functions = [
        helper.make_function("acme", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="acme")], opsets)
        for name, other in (("Ping", "Pong"), ("Pong", "Ping"))
    ]
    nodes = [helper.make_node("Ping", ["x"], ["a"], domain="acme"), helper.make_node("Relu", ["a"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], functions=functions, domains=["acme"])
    assert unknown_operators(index_of(made)) == {0}


def test_what_depends_on_a_blocked_node_goes_with_it() -> None:
    assert without_dependents(index_of(chain(5)), {2}) == (0, 1)
    assert without_dependents(index_of(chain(5)), ()) == (0, 1, 2, 3, 4)
