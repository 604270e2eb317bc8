"""What the form of a graph must obey: each rule names the nodes that break it, and says nothing of a sound model."""

from collections.abc import Sequence

import onnx
import pytest
from onnx import helper

from biopsy.questions.lint import rules
from support.models import BOOL, INT64, chain, info, model, weight


def relu(source: str, target: str, name: str = "") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=name)


def of(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",)) -> onnx.ModelProto:
    return model(nodes, [info("x")], [info(name) for name in outputs])


def body(name: str, nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info(output)])


def with_body(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    branches = {"then_branch": body("then", nodes, "inner"), "else_branch": body("else", [relu("x", "other")], "other")}
    node = helper.make_node("If", ["c"], ["y"], name="choice", **branches)
    return model([node], [info("c", (), BOOL), info("x")], [info("y")])


def foreign() -> onnx.ModelProto:
    return of([helper.make_node("Foo", ["x"], ["y"], domain="com.acme")])


def with_input(told: onnx.ValueInfoProto, default: onnx.TensorProto | None = None) -> onnx.ModelProto:
    add = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    return model([add], [info("x"), told], [info("y")], [default] if default else [])


BROKEN = {
    "an input without an element type": (with_input(info("w", (2,), 0)), "exception", "no element type", ()),
    "a default value of another type": (
        with_input(info("w", (1,), INT64), weight("w", 1.0, shape=(1,))),
        "exception",
        "'w' is int64, its default value float32",
        (),
    ),
    "a default value of another shape": (
        with_input(info("w", ("n", 2)), weight("w", 1.0, shape=(1, 1))),
        "exception",
        "another shape: [1, 1]",
        (),
    ),
    "two nodes of one name": (of([relu("x", "h", "n"), relu("h", "y", "n")]), "exception", "called 'n'", (0, 1)),
    "a tensor that is computed twice": (of([relu("x", "y"), relu("x", "y")]), "exception", "2 times", (0, 1)),
    "an input that is computed": (of([relu("x", "y"), relu("y", "x")]), "exception", "an input", (1,)),
    "a node without an operator": (of([helper.make_node("", ["x"], ["y"])]), "exception", "no operator", (0,)),
    "a tensor that nothing computes": (of([relu("gone", "y")]), "exception", "what nothing computes: 'gone'", (0,)),
    "an output that nothing computes": (of([relu("x", "y")], ["y", "z"]), "exception", "the output 'z'", ()),
    "nodes in the wrong order": (of([relu("h", "y"), relu("x", "h")]), "exception", "computes 'h'", (0,)),
    "a circle": (of([relu("b", "a"), relu("a", "b"), relu("b", "y")]), "exception", "in a circle", (0, 1)),
    "a node that reads itself": (of([relu("y", "y")]), "exception", "a node stands in a circle", (0,)),
    "a domain without opset": (foreign(), "exception", "the domain 'com.acme'", (0,)),
    "a body that is not sorted": (
        with_body(relu("h", "inner"), relu("x", "h")),
        "exception",
        "it reads 'h' too early",
        (0,),
    ),
    "a body that computes twice": (with_body(relu("x", "inner"), relu("x", "inner")), "exception", "than once", (0,)),
    "a name of outside used again": (with_body(relu("x", "y"), relu("y", "inner")), "warning", "again", (0,)),
    "a node for nothing": (of([relu("x", "y"), relu("x", "z")]), "warning", "does not affect".capitalize(), (1,)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_is_named_with_its_nodes(name: str) -> None:
    made, level, words, nodes = BROKEN[name]
    found = [entry for entry in rules.entries(made) if words in entry.message]
    assert [(entry.level, entry.nodes) for entry in found] == [(level, nodes)]


def test_inputs_initializers_and_functions_for_nothing_are_named() -> None:
    function = helper.make_function("own", "F", ["a"], ["b"], [relu("a", "b")], [helper.make_opsetid("", 17)])
    made = model(
        [relu("x", "y")],
        [info("x"), info("idle")],
        [info("y")],
        [weight("w", 1.0)],
        functions=[function],
        domains=["own"],
    )
    messages = [entry.message for entry in rules.entries(made) if entry.level == "warning"]
    assert messages == [
        "Input: 'idle' does not affect outputs, can be removed.",
        "Initializer: 'w' does not affect outputs, can be removed.",
        "Function: 'own::F' is never called.",
    ]


def test_a_default_value_may_have_any_of_the_shapes_that_are_declared() -> None:
    assert not list(rules.entries(with_input(info("w", ("n", -1, 3)), weight("w", *[1.0] * 6, shape=(1, 2, 3)))))


def test_a_sound_model_breaks_no_rule() -> None:
    assert list(rules.entries(chain(5))) == []


def test_a_long_circle_needs_no_deep_stack() -> None:
    nodes = [relu(f"t{place}", f"t{(place + 1) % 5000}") for place in range(5000)]
    found = [entry for entry in rules.entries(of(nodes, ["t0"])) if "circle" in entry.message]
    assert [len(entry.nodes) for entry in found] == [5000]
