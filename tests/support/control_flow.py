"""Models with If, Loop and Scan, their bodies of several nodes."""

import onnx
from onnx import helper

from support.models import BOOL, INT64, info, model, weight


def branching() -> onnx.ModelProto:
    """An If whose then branch is Neg, Mul, Exp and whose else branch is Exp; both read the Relu outside."""
    then = helper.make_graph(
        [
            helper.make_node("Neg", ["r"], ["t0"], name="neg"),
            helper.make_node("Mul", ["t0", "r"], ["t1"], name="mul"),
            helper.make_node("Exp", ["t1"], ["t"], name="exp"),
        ],
        "then", [], [info("t")],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Exp", ["r"], ["t"], name="other")], "else", [], [info("t")])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Abs", ["i"], ["y"], name="abs"),
    ]
    return model(nodes, [info("x"), info("c", (), BOOL)], [info("y")])


def looping() -> onnx.ModelProto:
    """Three trips of Add, Mul, Neg that carry a value, and stack an Exp of it that an Abs reads."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["v", "v"], ["w0"], name="add"),
            helper.make_node("Mul", ["w0", "v"], ["w1"], name="mul"),
            helper.make_node("Neg", ["w1"], ["w"], name="neg"),
            helper.make_node("Exp", ["w1"], ["s"], name="exp"),
        ],
        "body",
        [info("n", (), INT64), info("go", (), BOOL), info("v")],
        [info("go_on", (), BOOL), info("w"), info("s")],
    )
    nodes = [
        helper.make_node("Loop", ["count", "", "x"], ["last", "all"], name="loop", body=body),
        helper.make_node("Abs", ["all"], ["y"], name="abs"),
    ]
    weights = [weight("count", 3, dtype="int64", shape=())]
    return model(nodes, [info("x")], [info("last"), info("y", (3, 2, 2))], weights)


def scanning() -> onnx.ModelProto:
    """A running sum over the rows of a [3, 2]."""
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["sum"]), helper.make_node("Mul", ["sum", "sum"], ["square"])],
        "body", [info("state", (2,)), info("row", (2,))], [info("sum", (2,)), info("square", (2,))],
    )  # fmt: skip
    node = helper.make_node("Scan", ["start", "x"], ["last", "all"], name="scan", num_scan_inputs=1, body=body)
    after = helper.make_node("Relu", ["all"], ["y"], name="relu")
    return model([node, after], [info("start", (2,)), info("x", (3, 2))], [info("last", (2,)), info("y", (3, 2))])


def body(made: onnx.ModelProto, attribute: str, node: int = 0) -> onnx.GraphProto:
    return next(entry.g for entry in made.graph.node[node].attribute if entry.name == attribute)
