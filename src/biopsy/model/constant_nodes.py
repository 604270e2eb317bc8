"""The tensors that Constant nodes write, as they stand in the model."""

from __future__ import annotations

from collections.abc import Iterable

from biopsy.model import wire
from biopsy.model.index import ModelIndex
from biopsy.model.wire import fields, string_field


def is_constant_node(index: ModelIndex, node: int) -> bool:
    """Whether a node is a Constant: another way to write a weight."""
    return index.nodes[node].op_type == "Constant" and not index.nodes[node].domain


def constant_of_node(index: ModelIndex, tensor: int) -> bytes | None:
    """The serialized TensorProto that a Constant node with a plain tensor writes; None for any other tensor."""
    producer = index.producer.get(tensor)
    if producer is None or not is_constant_node(index, producer):
        return None
    span = index.node_spans[producer]
    for _, _, _, start, end in fields(span):
        for number, _, _, value, stop in fields(span, start, end):
            if number == 5:
                return _tensor_of_attribute(span, value, stop, index.names[tensor])
    return None


def _tensor_of_attribute(span: bytes, start: int, end: int, name: str) -> bytes | None:
    """AttributeProto.t (5) under a new name (TensorProto.name is 8)."""
    for number, kind, _, value, stop in fields(span, start, end):
        if number == 5 and kind == wire.BYTES:
            kept = _without(span, value, stop, 8)
            return b"".join((*kept, string_field(8, wire.raw(name))))
    return None


def _without(span: bytes, start: int, end: int, left_out: int) -> Iterable[bytes]:
    return [span[tag:stop] for number, _, tag, _, stop in fields(span, start, end) if number != left_out]
