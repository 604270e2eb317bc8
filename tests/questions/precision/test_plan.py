"""A model as the caster sees it: layers in the order of computation, with what they cost."""

from onnx import helper

from biopsy.questions.precision.formats import BFLOAT16, FLOAT, Role
from biopsy.questions.precision.plan import plan_of
from support.control_flow import looping
from support.models import info, model, weight
from support.precisions import overflowing


def test_layers_are_numbered_in_the_order_of_computation_and_carriers_are_none() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Transpose", ["a"], ["b"], name="turn"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="product"),
    ]
    plan = plan_of(model(nodes, [info("x")], [info("y")], [weight("w", *range(4), shape=(2, 2))]))
    assert [(layer.number, layer.name) for layer in plan.layers] == [(0, "exp"), (1, "product")]
    assert [node.part.role for node in plan.graph.nodes] == [Role.LAYER, Role.CARRIER, Role.LAYER]
    assert (plan.layers[1].flops, plan.layers[1].bytes) == (16, 48)
    assert plan.opset == 17 and {"exp", "x", "w", "y"} <= plan.taken


def test_layers_in_bodies_name_the_nodes_around_them() -> None:
    plan = plan_of(overflowing())
    (inner,) = (layer for layer in plan.layers if layer.where)
    assert (inner.name, inner.where) == ("running_sum", ("Loop 'loop'", "body"))
    assert inner.label == "Loop 'loop' / body / Add 'running_sum'"


def test_what_stays_is_counted_by_its_reason() -> None:
    nodes = [helper.make_node("Det", ["x"], ["a"]), helper.make_node("Det", ["x"], ["b"])]
    plan = plan_of(model(nodes, [info("x")], [info("a", ()), info("b", ())]), frozenset({BFLOAT16}))
    assert plan.layers == [] and plan.stays == {"Det of opset 17 knows no bf16": 2}


def test_types_that_inference_leaves_open_follow_from_the_inputs() -> None:
    """Nothing is declared behind a node of a private domain, but what reads a weight of float32 computes in it."""
    nodes = [
        helper.make_node("Secret", ["x"], ["a"], domain="acme"),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")], [weight("w", 2.0)], domains=["acme"])
    plan = plan_of(made)
    assert plan.graph.elems["b"] == FLOAT and [layer.op_type for layer in plan.layers] == ["Mul", "Exp"]


def test_a_tensor_that_only_casts_to_one_type_read_is_known() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["half"], to=10),
        helper.make_node("Cast", ["half"], ["y"], to=1),
    ]
    assert plan_of(model(nodes, [info("x")], [info("y")])).graph.cast_only == {"a": 10, "half": 1, "x": 0}


def test_open_dimensions_count_as_one() -> None:
    made = model([helper.make_node("Exp", ["x"], ["y"])], [info("x", ("N", 4))], [info("y", ("N", 4))])
    assert plan_of(made).layers[0].flops == 4


def test_bodies_are_planned_with_the_tensors_around_them() -> None:
    plan = plan_of(looping())
    (loop,) = (node for node in plan.graph.nodes if node.proto.op_type == "Loop")
    ((_, _, body),) = loop.bodies
    assert any(node.number >= 0 for node in body.nodes)
