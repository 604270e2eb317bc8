"""A model of one Identity node: what a check should pass, and what an engine warms up with."""

from __future__ import annotations

from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.model.value_info import value_info
from biopsy.model.wire import head, raw, string_field, varint_field

OUTPUT = "biopsy_identity"
_FLOAT = TensorType(1, (1,))


def identity_of(index: ModelIndex) -> bytes:
    """A model of one Identity node with the opset of another and, if that has one, its first input."""
    first = next(iter(index.fed_inputs()), None)
    kind = index.tensor_type(first) if first is not None else None
    if first is None or kind is None:
        return identity_bytes(opset=index.opset or 17, ir_version=index.ir_version or 8)
    return identity_bytes(index.names[first], kind, index.opset or 17, index.ir_version or 8)


def identity_bytes(name: str = "x", kind: TensorType = _FLOAT, opset: int = 17, ir_version: int = 8) -> bytes:
    """A serialized model of one Identity node with an input of this name and type; float32 [1] by default."""
    node = string_field(1, raw(name)) + string_field(2, OUTPUT.encode()) + string_field(4, b"Identity")
    graph = b"".join(
        (
            string_field(1, node),
            string_field(2, b"identity"),
            string_field(11, value_info(name, kind)),
            string_field(12, value_info(OUTPUT, kind)),
        )
    )
    opsets = string_field(8, varint_field(2, opset))
    return b"".join((varint_field(1, ir_version), head(7, len(graph)), graph, opsets))
