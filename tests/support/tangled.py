"""Models whose nodes are in no order that ONNX allows: they wait for each other, or two compute one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from support.models import BOOL, info, model


def _of(*nodes: onnx.NodeProto, weights: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    return model(list(nodes), [info("x")], [info("y")], weights)


def _node(operator: str, reads: str, writes: str, name: str) -> onnx.NodeProto:
    return helper.make_node(operator, reads.split(), [writes], name=name)


def _branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [info("inner")])


def _if(name: str, *, reads: str, writes: str) -> onnx.NodeProto:
    branch = _branch(_node("Relu", reads, "inner", f"{name}_inner"))
    return helper.make_node("If", ["c"], [writes], name=name, then_branch=branch, else_branch=branch)


_TRUE = [helper.make_tensor("c", BOOL, [], [True])]

WAITING: dict[str, onnx.ModelProto] = {
    "two nodes": _of(_node("Relu", "y", "z", "a"), _node("Relu", "z", "y", "b")),
    "three nodes": _of(_node("Relu", "y", "z", "a"), _node("Neg", "z", "w", "b"), _node("Add", "w x", "y", "c")),
    "one node": _of(_node("Add", "x y", "y", "a")),
    "a body": _of(_if("a", reads="y", writes="y"), weights=_TRUE),
    "two bodies": _of(
        _if("a", reads="z", writes="y"), _if("b", reads="y", writes="z"), _node("Relu", "x", "v", "c"),
        weights=_TRUE,
    ),
    "a cycle within a body": _of(
        helper.make_node(
            "If", ["c"], ["y"], name="a",
            then_branch=_branch(_node("Relu", "s", "inner", "b"), _node("Relu", "inner", "s", "d")),
            else_branch=_branch(_node("Relu", "x", "inner", "e")),
        ),
        weights=_TRUE,
    ),
}  # fmt: skip
"""Nodes that wait for each other."""

TANGLED: dict[str, onnx.ModelProto] = {
    **WAITING,
    "a tensor written twice": _of(_node("Relu", "x", "y", "a"), _node("Abs", "x", "y", "b")),
    "a tensor written twice on a cycle": _of(
        _node("Relu", "y", "z", "a"), _node("Relu", "z", "y", "b"), _node("Neg", "x", "y", "c")
    ),
    "unsorted nodes": _of(_node("Relu", "z", "y", "a"), _node("Abs", "x", "z", "b")),
}
"""These, and other models that no checker takes."""
