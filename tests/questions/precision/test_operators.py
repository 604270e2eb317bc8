"""What a node is for a search over precisions, as ONNX's own schemas have it."""

import pytest
from onnx import helper

from biopsy.questions.precision.formats import BFLOAT16, DOUBLE, FLOAT, FLOAT16, Role, node_role

FLOATS = frozenset({"x", "y", "z", "w", "b"})


def elem(name: str) -> int:
    return FLOAT if name in FLOATS else 7


@pytest.mark.parametrize(
    ("op", "inputs", "role"),
    [
        ("MatMul", ["x", "w"], Role.LAYER),
        ("Exp", ["x"], Role.LAYER),
        ("Transpose", ["x"], Role.CARRIER),
        ("Relu", ["x"], Role.CARRIER),
        ("Cast", ["x"], Role.CONVERSION),
        ("QuantizeLinear", ["x", "w"], Role.FIXED),
        ("Shape", ["x"], Role.FIXED),
        ("Greater", ["x", "w"], Role.FIXED),
        ("ArgMax", ["x"], Role.FIXED),
    ],
)
def test_the_role_of_a_node(op: str, inputs: list[str], role: Role) -> None:
    assert node_role(helper.make_node(op, inputs, ["y"]), 17, elem).role is role


def test_only_inputs_of_the_type_of_the_result_change() -> None:
    reshape = node_role(helper.make_node("Reshape", ["x", "shape"], ["y"]), 17, elem)
    assert (reshape.inputs, reshape.outputs) == ((0,), (0,))
    top = node_role(helper.make_node("TopK", ["x", "k"], ["y", "places"]), 17, elem)
    assert (top.inputs, top.outputs) == ((0,), (0,))


def test_all_inputs_of_a_variadic_operator_change() -> None:
    concat = node_role(helper.make_node("Concat", ["x", "w", "b"], ["y"], axis=0), 17, elem)
    assert concat.inputs == (0, 1, 2)


def test_a_layer_on_integers_is_none() -> None:
    assert node_role(helper.make_node("Add", ["i", "j"], ["k"]), 17, elem).role is Role.FIXED


def test_a_type_that_the_opset_does_not_know_leaves_the_node_as_it_is_and_says_why() -> None:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    assert node_role(node, 13, elem, frozenset({BFLOAT16})).role is Role.LAYER
    older = node_role(node, 12, elem, frozenset({BFLOAT16}))
    assert (older.role, older.reason) == (Role.FIXED, "Add of opset 12 knows no bf16")


def test_of_an_operator_without_a_schema_nothing_is_changed() -> None:
    foreign = node_role(helper.make_node("Fused", ["x"], ["y"], domain="acme"), 17, elem)
    unknown = node_role(helper.make_node("NoSuchThing", ["x"], ["y"]), 17, elem)
    assert (foreign.role, foreign.reason) == (Role.FIXED, "no schema of acme.Fused is known")
    assert (unknown.role, unknown.reason) == (Role.FIXED, "no schema of NoSuchThing is known for opset 17")


def test_the_types_that_a_layer_knows_are_those_of_its_schema() -> None:
    assert node_role(helper.make_node("Exp", ["x"], ["y"]), 17, elem).types == {FLOAT, FLOAT16, BFLOAT16, DOUBLE}
