"""Names of a model that are no text, found before anybody stumbles over them.

ONNX says that strings are UTF-8, and its schema, written in proto2, lets protobuf accept anything: what is no text then
comes out as bytes, or raises where it is first looked at. In proto3 the parser itself asks, in C. So the model's
structure is parsed once more by the same schema in proto3, without documentation and without values.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model.node import string_in
from biopsy.model.wire import BYTES, fields, raw, string_field
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

_GRAPH, _WEIGHT, _NAME_OF_TENSOR = 7, 5, 8
_SMALL = 1 << 22
"""Bytes; a smaller model is looked at as it is."""

_NO_NAMES = frozenset({
    "doc_string", "metadata_props", "producer_name", "producer_version", "strings", "string_data", "raw_data",
    "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "floats", "ints",
})  # fmt: skip
"""Fields that no name stands in."""


def require_text(data: bytes, path: Path | None) -> None:
    """Raise ModelError if a name in a serialized model, which is otherwise sound, is no UTF-8.

    Names are those of tensors, nodes, operators, domains, attributes and symbols. ``path`` is only named in messages.
    """
    from google.protobuf.message import DecodeError

    try:
        _strict_model().FromString(data if len(data) < _SMALL else _without_weights(data))
    except DecodeError as error:
        raise errors.ModelError(
            f"the model {path or 'in memory'} holds a name that is no text (UTF-8)",
            next_steps=[] if path is None else [f"{_shown_by(path)}    shows it, its bytes escaped"],
        ) from error


def _shown_by(path: Path) -> str:
    return line_of(["biopsy", "inspect", "model", str(path), "--show", "layers"])


def _without_weights(data: bytes) -> bytes:
    """The model, each initializer nothing but its name."""
    parts: list[bytes] = []
    for number, kind, tag, start, end in fields(data):
        if number != _GRAPH or kind != BYTES:
            parts.append(data[tag:end])
            continue
        graph = [
            string_field(_WEIGHT, string_field(_NAME_OF_TENSOR, raw(string_in(data, _NAME_OF_TENSOR, s, e))))
            if inner == _WEIGHT and inner_kind == BYTES
            else data[t:e]
            for inner, inner_kind, t, s, e in fields(data, start, end)
        ]
        parts.append(string_field(_GRAPH, b"".join(graph)))
    return b"".join(parts)


@cache
def _strict_model() -> type[Message]:
    """ModelProto in proto3, without the fields that hold no name: takes a millisecond to make."""
    import onnx
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    schema = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(schema)
    schema.syntax = "proto3"
    for message in schema.message_type:
        _strip(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{schema.package}.ModelProto"))


def _strip(message: Any) -> None:
    for field in list(message.field):
        if field.name in _NO_NAMES:
            message.field.remove(field)
        else:
            field.ClearField("options")
            field.ClearField("default_value")
    message.ClearField("reserved_range")
    message.ClearField("reserved_name")
    for inner in message.nested_type:
        _strip(inner)
