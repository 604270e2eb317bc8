"""Reads nodes, functions, declared types and weights from their serialized bytes, and writes types and weights.

The field numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from biopsy import errors
from biopsy.model.tensor_type import (
    MOST_DIMENSIONS,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    place_in_file,
    raw_size,
)
from biopsy.model.wire import (
    BYTES,
    VARINT,
    Buffer,
    fields,
    payloads,
    raw,
    signed,
    string_field,
    text,
    varint_at,
    varint_field,
    varints,
)

FunctionKey: TypeAlias = tuple[str, str, str]
"""(domain, name, overload) of a model-local function; the domain "ai.onnx" is written ""."""

_GRAPH, _GRAPHS = bytes((6 << 3 | 2,)), bytes((11 << 3 | 2,))
"""The tags of AttributeProto.g and .graphs: an attribute without these bytes has no body."""

DEEPEST_NESTING = 100
"""Protobuf's own limit."""


class NodeText(NamedTuple):
    """A node as read from its bytes, with the names of its tensors.

    ``captures`` are tensors that bodies of the node (If, Loop, Scan) read from outside; ``calls`` are the operators of
    the node and of its bodies, any of which may be a model-local function.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    calls: tuple[FunctionKey, ...]


def read_node(payload: bytes, depth: int = 0) -> NodeText:
    """The node in a serialized NodeProto. Raises ModelError if it is damaged or nested too deep."""
    inputs: list[str] = []
    outputs: list[str] = []
    texts: dict[int, bytes] = {}
    captures: dict[str, None] = {}
    calls: dict[FunctionKey, None] = {}
    for number, start, end in payloads(payload):
        if number == 1:
            inputs.append(payload[start:end].decode("utf-8", "surrogateescape"))
        elif number == 2:
            outputs.append(payload[start:end].decode("utf-8", "surrogateescape"))
        elif number != 5:
            texts[number] = payload[start:end]
        elif payload.find(_GRAPH, start, end) >= 0 or payload.find(_GRAPHS, start, end) >= 0:
            for body in _bodies(payload, start, end):
                _read_body(body, captures, calls, depth + 1)
    op_type, domain = text(texts.get(4, b"")), text(texts.get(7, b""))
    domain = "" if domain == "ai.onnx" else domain
    own = (domain, op_type, text(texts[8]) if 8 in texts else "")
    calls.pop(own, None)
    return NodeText(
        name=text(texts.get(3, b"")),
        op_type=op_type,
        domain=domain,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        captures=tuple(captures),
        calls=(own, *calls),
    )


def _bodies(payload: bytes, start: int, end: int) -> Iterator[bytes]:
    """The graphs in the attribute at ``payload[start:end]`` (AttributeProto.g and .graphs)."""
    for number, kind, _, value, stop in fields(payload, start, end):
        if kind == 2 and number in {6, 11}:
            yield payload[value:stop]


def _read_body(graph: bytes, captures: dict[str, None], calls: dict[FunctionKey, None], depth: int) -> None:
    """Add the tensors that a body reads from outside to ``captures``, and its operators to ``calls``."""
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"the model is damaged: graphs are nested more than {DEEPEST_NESTING} deep")
    own: set[str] = {""}
    read: dict[str, None] = {}
    results: list[str] = []
    for number, kind, _, start, end in fields(graph):
        if kind != 2:
            continue
        if number == 1:
            node = read_node(graph[start:end], depth)
            own.update(node.outputs)
            read.update(dict.fromkeys((*node.inputs, *node.captures)))
            calls.update(dict.fromkeys(node.calls))
        elif number == 12:
            results.append(string_in(graph, 1, start, end))
        elif number in {5, 11}:
            own.add(string_in(graph, 8 if number == 5 else 1, start, end))
        elif number == 15:  # a sparse initializer has the name of its values
            spans = [(at, to) for part, kind, _, at, to in fields(graph, start, end) if (part, kind) == (1, BYTES)]
            own.update(string_in(graph, 8, *span) for span in spans[:1])
    captures.update(dict.fromkeys(name for name in (*read, *results) if name not in own))


def string_in(payload: bytes, wanted: int, start: int, end: int) -> str:
    """The string field with number ``wanted`` of a message, the last one as protobuf has it; "" if there is none."""
    string = ""
    for number, kind, _, value, stop in fields(payload, start, end):
        if number == wanted and kind == 2:
            string = text(payload[value:stop])
    return string


class FunctionText(NamedTuple):
    """A model-local function: its key, and the operators of its body."""

    key: FunctionKey
    calls: tuple[FunctionKey, ...]


def read_function(payload: bytes) -> FunctionText:
    """The function in a serialized FunctionProto. Raises ModelError if it is damaged."""
    texts = {1: "", 10: "", 13: ""}
    calls: dict[FunctionKey, None] = {}
    for number, kind, _, start, end in fields(payload):
        if kind != 2:
            continue
        if number in texts:
            texts[number] = text(payload[start:end])
        elif number == 7:
            calls.update(dict.fromkeys(read_node(payload[start:end]).calls))
    domain = "" if texts[10] == "ai.onnx" else texts[10]
    return FunctionText((domain, texts[1], texts[13]), tuple(calls))


_TENSOR, _SEQUENCE, _MAP, _OPTIONAL = 1, 4, 5, 9  # field numbers of TypeProto


def name_of(info: bytes) -> str:
    """The tensor name in a serialized ValueInfoProto."""
    return string_in(info, 1, 0, len(info))


def has_type(info: bytes) -> bool:
    """Whether a serialized ValueInfoProto has a type of any kind."""
    return any(number == 2 and end > start for number, _, _, start, end in fields(info))


def tensor_type(info: bytes) -> TensorType | None:
    """The tensor type in a serialized ValueInfoProto; None if it has none or a type of another kind."""
    for number, kind, _, start, end in fields(info):
        if number == 2 and kind == BYTES:
            for inner, inner_kind, _, value, stop in fields(info, start, end):
                if inner == _TENSOR and inner_kind == BYTES:
                    return _read_tensor(info, value, stop)
    return None


def value_type(info: bytes) -> ValueType | None:
    """The type of any kind in a serialized ValueInfoProto; None if it has none or one of an unknown kind."""
    for number, kind, _, start, end in fields(info):
        if number == 2 and kind == 2:
            return _read_type(info, start, end)
    return None


def _read_type(info: bytes, start: int, end: int, depth: int = 0) -> ValueType | None:
    """Read a TypeProto. Its field is the kind; sequences and optionals have their item in field 1, maps in field 2."""
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
    shape: list[Dim] | None = None
    for number, kind, _, value, stop in fields(info, start, end):
        if number == 1 and kind == VARINT:
            elem = varint_at(info, value)
        elif number == 2 and kind == BYTES:
            shape = []
            for inner, inner_kind, _, at, to in fields(info, value, stop):
                if inner == 1 and inner_kind == BYTES:
                    shape.append(_read_dim(info, at, to))
                    if len(shape) > MOST_DIMENSIONS:
                        name = f"{name_of(info)!r:.100}"
                        raise errors.ModelError(f"tensor {name} has more than {MOST_DIMENSIONS} dimensions")
    return TensorType(elem, None if shape is None else tuple(shape)) if elem else None


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
    info = string_field(1, raw(name))
    if kind is None:
        return info
    tensor = varint_field(1, kind.elem)
    if kind.shape is not None:
        dims = (
            b"" if dim is None else varint_field(1, dim) if isinstance(dim, int) else string_field(2, raw(dim))
            for dim in kind.shape
        )
        tensor += string_field(2, b"".join(string_field(1, dim) for dim in dims))
    return info + string_field(2, string_field(1, tensor))


@dataclass(frozen=True)
class ExternalPlace:
    """The place of external data: a path relative to the model's folder, as the model has it, and a range of bytes.

    ``length`` is None if the model gives none: the data then ends with the file.
    """

    location: str
    offset: int = 0
    length: int | None = None


class Weight(NamedTuple):
    """An initializer. Its serialized TensorProto, or SparseTensorProto, is the span ``[start:end]`` of the model."""

    name: str
    kind: TensorType
    start: int
    end: int
    external: ExternalPlace | None = None
    sparse: bool = False

    @property
    def sizes(self) -> list[int]:
        """The sizes of its dimensions, which are always numbers."""
        return [dim for dim in self.kind.shape or () if isinstance(dim, int)]

    @property
    def bytes(self) -> int:
        """Bytes of its values by its type and shape; for strings and sparse tensors, its bytes in the file."""
        return (not self.sparse and raw_size(self.kind.elem, self.sizes)) or self.end - self.start


def read_weight(buffer: Buffer, start: int, end: int) -> Weight:
    """The TensorProto at ``buffer[start:end]``; its data is not read. Raises ModelError if it is damaged."""
    name = ""
    elem = 0
    dims: list[int] = []
    entries: list[tuple[str, str]] = []
    external = False
    for number, kind, _, value, stop in fields(buffer, start, end):
        if number == 1:
            _add_dims(dims, buffer, kind, value, stop)
        elif number == 2 and kind == VARINT:
            elem = varint_at(buffer, value)
        elif number == 8 and kind == BYTES:
            name = text(buffer[value:stop])
        elif number == 13 and kind == BYTES:
            entry = buffer[value:stop]
            entries.append((string_in(entry, 1, 0, len(entry)), string_in(entry, 2, 0, len(entry))))
        elif number == 14 and kind == VARINT:
            external = varint_at(buffer, value) == 1
    place = external_place(name, entries) if external else None
    return Weight(name, TensorType(elem, tuple(dims)), start, end, place)


def read_sparse_weight(buffer: Buffer, start: int, end: int) -> Weight:
    """The SparseTensorProto at ``buffer[start:end]``, under the name of its values tensor."""
    name, elem = "", 0
    dims: list[int] = []
    for number, kind, _, value, stop in fields(buffer, start, end):
        if number == 1 and kind == BYTES:
            values = read_weight(buffer, value, stop)
            name, elem = values.name, values.kind.elem
        elif number == 3:
            _add_dims(dims, buffer, kind, value, stop)
    return Weight(name, TensorType(elem, tuple(dims)), start, end, sparse=True)


def _add_dims(dims: list[int], buffer: Buffer, kind: int, start: int, end: int) -> None:
    """Add the values of a repeated int64, packed (proto3's default) or a single one."""
    dims += islice(varints(buffer, start, end), MOST_DIMENSIONS + 1 if kind == BYTES else 1)
    if len(dims) > MOST_DIMENSIONS:
        raise errors.ModelError(f"a weight has more than {MOST_DIMENSIONS} dimensions")


def external_place(tensor: str, entries: Iterable[tuple[str, str]]) -> ExternalPlace:
    """The place given by the keys and values of a tensor's external data.

    Raises ModelError, naming ``tensor``, if a key is given twice, since readers differ in which one they take; if there
    is not a location; or if offset or length is not a number that a file can have.
    """
    values: dict[str, str] = {}
    for key, value in entries:
        if key in values:
            raise errors.ModelError(f"the external data of tensor {tensor!r} names its {key} twice")
        values[key] = value
    if not values.get("location"):
        raise errors.ModelError(f"the external data of tensor {tensor!r} has no location")
    try:
        offset = place_in_file(values.get("offset") or "0")
        length = place_in_file(values["length"]) if values.get("length") else None
    except ValueError as error:
        raise errors.ModelError(f"the external data of tensor {tensor!r} has no proper offset or length") from error
    return ExternalPlace(values["location"], offset, length)


def external_tensor(weight: Weight, place: ExternalPlace) -> bytes:
    """A serialized TensorProto for ``weight`` whose data is at ``place``."""
    values = {"location": place.location, "offset": str(place.offset)}
    if place.length is not None:
        values["length"] = str(place.length)
    entries = [string_field(1, key.encode()) + string_field(2, raw(value)) for key, value in values.items()]
    return (
        _tensor_head(weight.name, weight.kind.elem, tuple(weight.sizes))
        + b"".join(string_field(13, entry) for entry in entries)
        + varint_field(14, 1)
    )


def _tensor_head(name: str, elem: int, dims: tuple[int, ...]) -> bytes:
    return b"".join(varint_field(1, dim) for dim in dims) + varint_field(2, elem) + string_field(8, raw(name))


def raw_tensor(name: str, elem: int, dims: tuple[int, ...], data: bytes) -> bytes:
    """A serialized TensorProto with little-endian ``data``, packed as onnx.proto3 says for its element type."""
    return _tensor_head(name, elem, dims) + string_field(9, data)


PUBLIC_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft"}
)
"""Public domains of operators: engines may know these, and the names reveal nothing about the model's owner."""
