"""The stored float32 values that layers read: weights and constants, themselves or as carriers hand them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from biopsy.mixed_precision.formats import FLOAT
from biopsy.mixed_precision.operators import Role
from biopsy.mixed_precision.plan import PlannedGraph, PlannedNode

if TYPE_CHECKING:
    import onnx

Sources: TypeAlias = "Mapping[str, onnx.TensorProto | PlannedNode]"
"""Where tensors come from: a stored value, or the node that computes them."""

_BOUNDED = frozenset({"Max", "Min"})
"""Carriers whose results are seldom the limit that they compare with."""


def stored_values(graph: PlannedGraph, chosen: Callable[[int], bool]) -> dict[str, onnx.TensorProto]:
    """Values of the model by the names of their tensors, of which ``chosen`` layers (by number) read."""
    found: dict[str, onnx.TensorProto] = {}
    _collect(graph, {}, chosen, found)
    return found


def _collect(
    graph: PlannedGraph, outer: Sources, chosen: Callable[[int], bool], found: dict[str, onnx.TensorProto]
) -> None:
    fed = {info.name for info in graph.proto.input}
    sources: dict[str, onnx.TensorProto | PlannedNode] = {name: one for name, one in outer.items() if name not in fed}
    sources.update((weight.name, weight) for weight in graph.proto.initializer)
    sources.update((name, node) for node in graph.nodes for name in node.proto.output if name)
    seen: set[str] = set()
    for node in graph.nodes:
        if node.part.role is Role.LAYER and chosen(node.number):
            waiting = list(_changing(node))
            while waiting:
                name = waiting.pop()
                if name in seen:
                    continue
                seen.add(name)
                source = sources.get(name)
                if isinstance(source, PlannedNode):
                    value = _constant(source.proto)
                    if source.part.role is Role.CARRIER and source.proto.op_type not in _BOUNDED:
                        waiting += _changing(source)
                else:
                    value = source
                if value is not None and value.data_type == FLOAT:
                    found[name] = value
        for _, _, body in node.bodies:
            _collect(body, sources, chosen, found)


def _changing(node: PlannedNode) -> Iterator[str]:
    """What a node reads in the type that it computes in."""
    return (node.proto.input[at] for at in node.part.inputs)


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value that a Constant or ConstantOfShape gives, or gives many times; None if it is no tensor of theirs."""
    from onnx import helper

    if node.op_type not in {"Constant", "ConstantOfShape"} or node.domain not in {"", "ai.onnx"}:
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t"):
            return attribute.t
        if attribute.name == "value_float":
            return helper.make_tensor("", FLOAT, [], [attribute.f])
        if attribute.name == "value_floats":
            return helper.make_tensor("", FLOAT, [len(attribute.floats)], attribute.floats)
    return None
