"""ValueInfoProto by hand: the type of a tensor, read from its bytes and written back.

Field numbers: onnx.proto3, messages ValueInfoProto, TypeProto, TensorShapeProto.
"""

from __future__ import annotations

from collections.abc import Iterator

from biopsy import errors
from biopsy.model.node import DEEPEST_NESTING, string_in
from biopsy.model.storage import MOST_DIMENSIONS
from biopsy.model.tensor_type import Dim, MapType, OptionalType, SequenceType, TensorType, ValueType
from biopsy.model.wire import BYTES, VARINT, fields, raw, signed, string_field, text, varint_at, varint_field

_TENSOR, _SEQUENCE, _MAP, _OPTIONAL = 1, 4, 5, 9  # field numbers in TypeProto


def name_of(info: bytes) -> str:
    """The tensor that a serialized ValueInfoProto speaks of."""
    return string_in(info, 1, 0, len(info))


def has_type(info: bytes) -> bool:
    """Whether a type of any kind is given: tensor, sequence, optional, map, sparse."""
    return any(number == 2 and end > start for number, _, _, start, end in fields(info))


def tensor_type(info: bytes) -> TensorType | None:
    """The tensor type in a serialized ValueInfoProto; None when there is none or it is no plain tensor."""
    for number, kind, _, start, end in fields(info):
        if number == 2 and kind == 2:
            for inner, inner_kind, _, value, stop in fields(info, start, end):
                if inner == 1 and inner_kind == 2:
                    return _read_tensor(info, value, stop)
    return None


def value_type(info: bytes) -> ValueType | None:
    """The type in a serialized ValueInfoProto, of whatever kind; None where there is none, or it is not known here."""
    for number, kind, _, start, end in fields(info):
        if number == 2 and kind == 2:
            return _read_type(info, start, end)
    return None


def _read_type(info: bytes, start: int, end: int, depth: int = 0) -> ValueType | None:
    """A TypeProto: the field says the kind; sequences and optionals hold another one in field 1, maps in field 2."""
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"the type of tensor {name_of(info)!r:.100} is nested over {DEEPEST_NESTING} deep")
    for number, kind, _, value, stop in fields(info, start, end):
        if kind != BYTES:
            continue
        if number == _TENSOR:
            return _read_tensor(info, value, stop)
        if number not in (_SEQUENCE, _MAP, _OPTIONAL):
            continue
        key, item = 0, None
        for inner, inner_kind, _, at, to in fields(info, value, stop):
            if inner == 1 and number == _MAP:
                key = varint_at(info, at) if inner_kind == VARINT else key
            elif inner_kind == BYTES:
                item = _read_type(info, at, to, depth + 1)
        if item is None:
            return None
        return MapType(key, item) if number == _MAP else (SequenceType if number == _SEQUENCE else OptionalType)(item)
    return None


def _read_tensor(info: bytes, start: int, end: int) -> TensorType | None:
    elem = 0
    shape: tuple[Dim, ...] | None = None
    for number, kind, _, value, stop in fields(info, start, end):
        if number == 1 and kind == VARINT:
            elem = varint_at(info, value)
        elif number == 2 and kind == BYTES:
            shape = tuple(_dims(info, value, stop))
    return TensorType(elem, shape) if elem else None


def _dims(info: bytes, start: int, end: int) -> Iterator[Dim]:
    number_of = 0
    for number, kind, _, value, stop in fields(info, start, end):
        if number == 1 and kind == BYTES:
            number_of += 1
            if number_of > MOST_DIMENSIONS:
                raise errors.ModelError(f"tensor {name_of(info)!r:.100} has more than {MOST_DIMENSIONS} dimensions")
            yield _read_dim(info, value, stop)


def _read_dim(info: bytes, start: int, end: int) -> Dim:
    dim: Dim = None
    for number, kind, _, value, stop in fields(info, start, end):
        if number == 1 and kind == VARINT:
            dim = signed(varint_at(info, value))
            dim = dim if dim >= 0 else None
        elif number == 2 and kind == BYTES:
            dim = text(info[value:stop]) or None
    return dim


def value_info(name: str, kind: TensorType | None) -> bytes:
    """A serialized ValueInfoProto; without a type if ``kind`` is None."""
    out = string_field(1, raw(name))
    if kind is None:
        return out
    tensor = varint_field(1, kind.elem)
    if kind.shape is not None:
        tensor += string_field(2, b"".join(string_field(1, _dim(dim)) for dim in kind.shape))
    return out + string_field(2, string_field(1, tensor))


def _dim(dim: Dim) -> bytes:
    if dim is None:
        return b""
    return varint_field(1, dim) if isinstance(dim, int) else string_field(2, raw(dim))
