"""Scan outputs of Loop as the standard has them: stacked along a new axis.

The evaluator of onnx joins them along the first axis that they have, so that scalars become [n, 1], and matrices
[n * a, b]. Here each of them gets two axes more inside the body, the first to be joined along, and loses the second
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import walk

if TYPE_CHECKING:
    import onnx

Place: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

_AXES_ARE_AN_INPUT = 13
"""The opset since which Squeeze and Unsqueeze read their axes from an input."""


def stack_outputs(proto: onnx.ModelProto) -> None:
    """Change every Loop of a model, in bodies and functions too, in place."""
    version = _version(proto.opset_import)
    for place in (proto.graph, *walk.graphs_within(proto.graph.node)):
        _stack_in(place, version)
    for function in proto.functions:
        version = _version(function.opset_import)
        _stack_in(function, version)
        for place in walk.graphs_within(function.node):
            _stack_in(place, version)


def _version(opsets: Sequence[onnx.OperatorSetIdProto]) -> int:
    return next((opset.version for opset in opsets if opset.domain in {"", "ai.onnx"}), 1)


def _stack_in(place: Place, version: int) -> None:
    number = 0
    while number < len(place.node):
        node = place.node[number]
        number += 1
        if node.op_type == "Loop" and walk.operator(node)[0] == "":
            for added in _stacked(node, version):
                place.node.insert(number, added)
                number += 1


def _stacked(node: onnx.NodeProto, version: int) -> list[onnx.NodeProto]:
    """Change the body of one Loop, and give the nodes that must follow it; one without a body is left alone."""
    bodies = list(walk.bodies(node))
    if len(bodies) != 1:
        return []
    (body,) = bodies
    carried = max(len(node.input) - 2, 0)
    following = []
    for place in range(carried, len(body.output) - 1):
        inner = body.output[place + 1]
        told = f"biopsy/stacked/{inner.name}/{place}"
        body.node.extend(_reshaping("Unsqueeze", inner.name, told, [0, 1], version))
        inner.name = told
        inner.ClearField("type")
        if place < len(node.output) and node.output[place]:
            outer = node.output[place]
            node.output[place] = f"biopsy/stacked/{outer}"
            following += _reshaping("Squeeze", node.output[place], outer, [1], version)
    return following


def _reshaping(operator: str, source: str, result: str, axes: list[int], version: int) -> list[onnx.NodeProto]:
    from onnx import TensorProto, helper

    if version < _AXES_ARE_AN_INPUT:
        return [helper.make_node(operator, [source], [result], axes=axes)]
    held = helper.make_tensor("", TensorProto.INT64, [len(axes)], axes)
    name = f"{result}/axes"
    constant = helper.make_node("Constant", [], [name], value=held)
    return [constant, helper.make_node(operator, [source, name], [result])]
