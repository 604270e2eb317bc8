"""Initializers by hand: name, type, size and place of a weight, without touching its values.

Field numbers: onnx.proto3, messages TensorProto, SparseTensorProto, StringStringEntryProto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from biopsy import errors
from biopsy.model.node import string_in
from biopsy.model.storage import MOST_DIMENSIONS, place_in_file
from biopsy.model.tensor_type import TensorType
from biopsy.model.wire import (
    BYTES,
    VARINT,
    Buffer,
    fields,
    raw,
    signed,
    string_field,
    text,
    varint_at,
    varint_field,
)


@dataclass(frozen=True)
class ExternalPlace:
    """Where external data stands: a path relative to the model's folder as the model writes it, and a byte range.

    ``length`` is None when the model does not say: to the end of the file.
    """

    location: str
    offset: int = 0
    length: int | None = None


class Weight(NamedTuple):
    """One initializer: the span ``[start:end]`` of its serialized TensorProto (or SparseTensorProto) in the file."""

    name: str
    kind: TensorType
    start: int
    end: int
    external: ExternalPlace | None = None
    sparse: bool = False


def read_weight(buffer: Buffer, start: int, end: int) -> Weight:
    """The TensorProto at ``buffer[start:end]``, its data not read. Raises ModelError if it is damaged."""
    name = ""
    elem = 0
    dims: list[int] = []
    entries: dict[str, str] = {}
    external = twice = False
    for number, kind, _, value, stop in fields(buffer, start, end):
        if number == 1:
            dims += _dims(buffer, kind, value, stop)
            _require_rank(dims)
        elif number == 2 and kind == VARINT:
            elem = varint_at(buffer, value)
        elif number == 8 and kind == BYTES:
            name = text(buffer[value:stop])
        elif number == 13 and kind == BYTES:
            entry = buffer[value:stop]
            key = string_in(entry, 1, 0, len(entry))
            twice |= key in entries
            entries[key] = string_in(entry, 2, 0, len(entry))
        elif number == 14 and kind == VARINT:
            external = varint_at(buffer, value) == 1
    if external and twice:
        raise errors.ModelError(
            f"the external data of weight {name!r} names a place twice: not all readers take the same"
        )
    place = _place(name, entries) if external else None
    return Weight(name, TensorType(elem, tuple(dims)), start, end, place)


def read_sparse_weight(buffer: Buffer, start: int, end: int) -> Weight:
    """The SparseTensorProto at ``buffer[start:end]``; it is named by its values tensor."""
    name, elem = "", 0
    dims: list[int] = []
    for number, kind, _, value, stop in fields(buffer, start, end):
        if number == 1 and kind == BYTES:
            values = read_weight(buffer, value, stop)
            name, elem = values.name, values.kind.elem
        elif number == 3:
            dims += _dims(buffer, kind, value, stop)
            _require_rank(dims)
    return Weight(name, TensorType(elem, tuple(dims)), start, end, sparse=True)


def _require_rank(dims: list[int]) -> None:
    if len(dims) > MOST_DIMENSIONS:
        raise errors.ModelError(f"a weight has more than {MOST_DIMENSIONS} dimensions")


def _dims(buffer: Buffer, kind: int, start: int, end: int) -> list[int]:
    """A repeated int64, packed (proto3's default) or one by one."""
    dims: list[int] = []
    while start < end and len(dims) <= MOST_DIMENSIONS:
        dims.append(signed(varint_at(buffer, start)))
        if kind != BYTES:
            break
        while buffer[start] >= 0x80:
            start += 1
        start += 1
    return dims


def _place(name: str, entries: dict[str, str]) -> ExternalPlace:
    try:
        offset = place_in_file(entries.get("offset", "0") or "0")
        length = place_in_file(entries["length"]) if entries.get("length") else None
    except ValueError as error:
        raise errors.ModelError(
            f"the external data of weight {name!r} has an offset or length that is no number"
        ) from error
    location = entries.get("location", "")
    if not location or offset < 0 or (length is not None and length < 0):
        raise errors.ModelError(f"weight {name!r}: its external data has no location, or a negative offset or length")
    return ExternalPlace(location, offset, length)


def external_tensor(weight: Weight, place: ExternalPlace) -> bytes:
    """A serialized TensorProto for ``weight`` whose data stands at ``place``."""
    entries = {"location": place.location, "offset": str(place.offset)}
    if place.length is not None:
        entries["length"] = str(place.length)
    assert weight.kind.shape is not None
    return b"".join(
        (
            b"".join(varint_field(1, dim) for dim in weight.kind.shape if isinstance(dim, int)),
            varint_field(2, weight.kind.elem),
            string_field(8, raw(weight.name)),
            b"".join(
                string_field(13, string_field(1, key.encode()) + string_field(2, raw(entry)))
                for key, entry in entries.items()
            ),
            varint_field(14, 1),
        )
    )


def raw_tensor(name: str, elem: int, dims: tuple[int, ...], data: bytes) -> bytes:
    """A serialized TensorProto with little-endian ``data``, packed as onnx.proto3 says for its element type."""
    return b"".join(
        (
            b"".join(varint_field(1, dim) for dim in dims),
            varint_field(2, elem),
            string_field(8, raw(name)),
            string_field(9, data),
        )
    )
