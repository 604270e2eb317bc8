"""Outputs of If, Loop and Scan that nothing reads: taken from the node and from its bodies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.passes.editing import (
    Place,
    copied,
    drop_dead_nodes,
    drop_what_died,
    every_node,
    graph_at,
    is_control_flow,
    read_in,
)

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Output:
    """One output of a control-flow node, by its position."""

    place: Place
    node: int
    position: int


def unread_outputs(model: onnx.ModelProto) -> list[Output]:
    """Outputs that can go: nothing reads them, and inside the body nothing reads the value that a loop carries."""
    found = []
    for place, number, node in every_node(model):
        if is_control_flow(node) and _is_well_formed(node):
            read = read_in(graph_at(model, place))
            unread = [
                Output(place, number, position)
                for position, name in enumerate(node.output)
                if name not in read and _is_free(node, position)
            ]
            found += unread if len(unread) < len(node.output) else unread[1:]
    return found


def without_outputs(model: onnx.ModelProto, gone: Iterable[Output]) -> onnx.ModelProto:
    """The model without those outputs, and without what only they needed inside the bodies."""
    made = copied(model)
    for output in sorted(gone, key=lambda output: (output.place, output.node, output.position), reverse=True):
        node = graph_at(made, output.place).node[output.node]
        _remove(node, output.position)
        for body in walk.bodies(node):
            drop_dead_nodes(body)
    drop_what_died(made, model)
    return made


def _is_well_formed(node: onnx.NodeProto) -> bool:
    """Whether bodies and node agree in their numbers, so that positions mean what they should."""
    inner = 1 if node.op_type == "Loop" else 0
    carried = _carried(node)
    for body in walk.bodies(node):
        if len(body.output) != inner + len(node.output) or carried > len(node.output):
            return False
        if node.op_type == "Loop" and len(body.input) != 2 + carried:
            return False
        if node.op_type == "Scan" and len(body.input) != len(node.input):
            return False
    return True


def _carried(node: onnx.NodeProto) -> int:
    """How many values a loop carries from trip to trip."""
    if node.op_type == "Loop":
        return max(len(node.input) - 2, 0)
    if node.op_type == "Scan":
        scanned = next((entry.i for entry in node.attribute if entry.name == "num_scan_inputs"), 0)
        return max(len(node.input) - scanned, 0)
    return 0


def _is_free(node: onnx.NodeProto, position: int) -> bool:
    """Whether a carried value is read by nothing but what makes it, so that it can go with its input."""
    if position >= _carried(node):
        return True
    body = next(walk.bodies(node))
    first = 2 if node.op_type == "Loop" else 0
    others = {output.name for number, output in enumerate(body.output) if number != position + first // 2}
    needed = set(others)
    for inner in reversed(body.node):
        if needed.intersection(inner.output):
            needed |= walk.reads(inner)
    return body.input[position + first].name not in needed


def _remove(node: onnx.NodeProto, position: int) -> None:
    carried = _carried(node)
    del node.output[position]
    for body in walk.bodies(node):
        del body.output[position + (1 if node.op_type == "Loop" else 0)]
        if position < carried:
            first = 2 if node.op_type == "Loop" else 0
            del body.input[position + first]
            del node.input[position + first]
    for attribute in node.attribute:
        if attribute.name in {"scan_output_axes", "scan_output_directions"} and 0 <= position - carried < len(
            attribute.ints
        ):
            del attribute.ints[position - carried]
