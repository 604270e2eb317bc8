"""A model taken apart for those who describe it, its weights included: read straight from the file's bytes, with
neither onnx nor numpy.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy import errors
from biopsy.model import external
from biopsy.model.parts import DEEPEST_NESTING, Weight, name_of, read_sparse_weight, read_weight, string_in, tensor_type
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType, elements, raw_size
from biopsy.model.wire import BYTES, VARINT, Buffer, fields, signed, string_field, text, varint_at
from biopsy.processes.reading import open_plain
from biopsy.text import printable, size_text

if TYPE_CHECKING:
    import numpy.typing as npt

Span: TypeAlias = tuple[int, int]
"""Where a message stands in the buffer: its first byte, and the one after its last."""


# The three classes below are plain ones: making a dataclass takes a millisecond of every start.


class Source:
    """What every part of the description needs: the bytes, where external data stands, and what to show."""

    def __init__(
        self, buffer: Buffer, folder: Path, show: Collection[str], spell: Callable[[TensorType], str] = str
    ) -> None:
        self.buffer = buffer
        self.spell = spell
        self.facts: Mapping[str, str] = {}
        self.folder = folder
        self.layers = "layers" in show
        self.attrs = "attrs" in show
        self.weights = "weights" in show

    def string(self, wanted: int, span: Span) -> str:
        """The string field ``wanted`` of a message, printable."""
        return printable(string_in(self.buffer[span[0] : span[1]], wanted, 0, span[1] - span[0]))

    def text(self, start: int, end: int) -> str:
        """A string field's own bytes, printable."""
        return printable(text(self.buffer[start:end]))


LONGEST_NAME = 1000


class GraphParts:
    """A graph taken apart: spans of its nodes, and its tensors by name, with their types as text."""

    def __init__(self) -> None:
        self.name = ""
        self.doc = ""
        self.nodes: list[Span] = []
        self.weights: list[Weight] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.types: dict[str, str] = {}

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """Names of the initializers, once all are read."""
        return frozenset(weight.name for weight in self.weights)


class ModelParts:
    """A model taken apart: spans of its graph and functions, and what it says of itself as text."""

    def __init__(self) -> None:
        self.graphs: list[Span] = []
        self.functions: list[Span] = []
        self.opsets: list[tuple[str, int]] = []
        self.producer = ["", ""]
        self.ir_version = "unknown"


def short_name(name: str) -> str:
    """A name without its end where nobody could read it all: a stranger's may have as many characters as he likes."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... ({len(name)} characters)"


def whole_model(source: Source) -> tuple[ModelParts, GraphParts]:
    """The parts of a model and of its graph. Raises ModelError if it has none."""
    parts = ModelParts()
    for number, kind, _, start, end in fields(source.buffer):
        if number == 1 and kind == VARINT:
            parts.ir_version = str(signed(varint_at(source.buffer, start)))
        elif kind == BYTES and number in {7, 25}:
            (parts.graphs if number == 7 else parts.functions).append((start, end))
        elif kind == BYTES and number == 8:
            parts.opsets.append(_opset(source, (start, end)))
        elif kind == BYTES and number in {2, 3}:
            parts.producer[number - 2] = source.text(start, end)
    if not parts.graphs:
        raise errors.ModelError("it has no graph")
    graph = GraphParts()
    for span in parts.graphs:  # protobuf merges a message that stands there twice
        read_graph(source, span, graph)
    return parts, graph


def _opset(source: Source, span: Span) -> tuple[str, int]:
    """The domain, "" for the standard's own, and the version in an OperatorSetIdProto."""
    version = next(
        (
            signed(varint_at(source.buffer, at))
            for n, k, _, at, _ in fields(source.buffer, *span)
            if (n, k) == (2, VARINT)
        ),
        0,
    )
    domain = source.string(1, span)
    return "" if domain == "ai.onnx" else domain, version


def read_graph(source: Source, span: Span, graph: GraphParts) -> None:
    """Add what stands in a GraphProto to ``graph``. Raises ModelError if it is damaged."""
    buffer = source.buffer
    for number, kind, _, start, end in fields(buffer, *span):
        if kind != BYTES:
            continue
        if number == 1:
            graph.nodes.append((start, end))
        elif number == 2:
            graph.name = short_name(source.text(start, end))
        elif number == 10:
            graph.doc = short_name(source.text(start, end))
        elif number in {5, 15}:
            read = read_weight if number == 5 else read_sparse_weight
            graph.weights.append(read(buffer, start, end))
        elif number in {11, 12} or (number == 13 and source.layers):
            info = buffer[start:end]
            name = name_of(info)
            if number != 13:
                (graph.inputs if number == 11 else graph.outputs).append(name)
            graph.types[name] = info_type(source, info) or graph.types.get(name, "")
    graph.types.update((weight.name, printable(source.spell(weight.kind))) for weight in graph.weights)


def info_type(source: Source, info: bytes) -> str:
    """The type in a ValueInfoProto as text; "" if there is none."""
    spans = [(start, end) for number, kind, _, start, end in fields(info) if number == 2 and kind == BYTES]
    return "".join(type_text(source, info[start:end], 0) for start, end in spans[-1:])


def type_text(source: Source, payload: bytes, depth: int) -> str:
    """A TypeProto as text, such as ``float32[N,3]`` or ``sequence(float32[...])``."""
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"types are nested more than {DEEPEST_NESTING} deep")
    for number, kind, _, start, end in fields(payload):
        if kind != BYTES:
            continue
        inner = payload[start:end]
        if number == 1:
            known = tensor_type(string_field(2, string_field(1, inner)))
            return printable(source.spell(known)) if known else ""
        if number in {4, 9}:
            within = "".join(type_text(source, inner[s:e], depth + 1) for n, _, _, s, e in fields(inner) if n == 1)
            return f"{'sequence' if number == 4 else 'optional'}({within or '?'})"
        if number == 5:
            return _map_text(source, inner, depth)
        if number == 8:
            known = tensor_type(string_field(2, string_field(1, inner)))
            return f"sparse({printable(source.spell(known)) if known else '?'})"
        if number == 7:
            domain, name = (printable(string_in(inner, part, 0, len(inner))) for part in (1, 2))
            return f"opaque({domain}::{name})"
    return ""


def _map_text(source: Source, payload: bytes, depth: int) -> str:
    key, value = "?", "?"
    for number, kind, _, start, end in fields(payload):
        if number == 1 and kind == VARINT:
            key = DTYPE_OF_ELEM.get(varint_at(payload, start), "?")
        elif number == 2 and kind == BYTES:
            value = type_text(source, payload[start:end], depth + 1) or "?"
    return f"map({key}, {value})"


# Weights as text for people: type, bytes, place, some values; statistics by numpy, which is imported for them only.

_FEW = 8  # values shown of a weight; a tensor with no more is shown whole and needs no statistics
_FORMATS = {1: "f", 2: "B", 3: "b", 4: "H", 5: "h", 6: "i", 7: "q", 9: "?", 10: "e", 11: "d", 12: "I", 13: "Q"}
_BFLOAT16 = 16
_MOST_SUMMED = 1 << 26  # elements; statistics of a larger weight would take seconds and gigabytes


def bytes_of(weight: Weight) -> int:
    """Bytes of a weight's values by its type and shape; of strings and sparse tensors as they stand in the file."""
    assert weight.kind.shape is not None
    size = raw_size(weight.kind.elem, (dim for dim in weight.kind.shape if isinstance(dim, int)))
    return weight.end - weight.start if weight.sparse or not size else size


def describe_weight(buffer: Buffer, weight: Weight, folder: Path, *, values: bool) -> str:
    """Type, shape, bytes and place of a weight; small ones with their values, with ``values`` all with statistics.

    ``folder`` is where external data stands; it is read with ``values`` only, and missing or unsafe data is told in
    the text.
    """
    parts = [printable(str(weight.kind)), "sparse" if weight.sparse else "", size_text(bytes_of(weight))]
    if weight.external:
        parts.append(f"in {printable(weight.external.location)} at {weight.external.offset}")
    number = _elements(weight)
    if not weight.sparse and (values or (number <= _FEW and not weight.external)):
        parts += _values_text(buffer, weight, folder, number)
    return " · ".join(filter(None, parts))


def values_text(buffer: Buffer, weight: Weight, folder: Path) -> str:
    """The values of a weight that is not sparse: all of a few, else the first ones after statistics of all.

    ``folder`` is where external data stands; missing or unsafe data is told in the text.
    """
    return " · ".join(filter(None, _values_text(buffer, weight, folder, _elements(weight))))


def _elements(weight: Weight) -> int:
    assert weight.kind.shape is not None
    return elements(dim for dim in weight.kind.shape if isinstance(dim, int))


def _values_text(buffer: Buffer, weight: Weight, folder: Path, number: int) -> list[str]:
    try:
        payload = _external_payload(weight, folder, number) if weight.external else None
    except errors.ModelError as error:
        return [printable(error.message)]
    first = list(islice(_values(buffer, weight, payload), min(number, _FEW)))
    if not first:
        return []
    shown = ", ".join(first) + (", ..." if number > _FEW else "")
    shown = shown if weight.kind.shape == () else f"[{shown}]"
    return [_statistics(buffer, weight, payload) if _FEW < number <= _MOST_SUMMED else "", shown]


def _external_payload(weight: Weight, folder: Path, number: int) -> bytes:
    """The bytes of an external weight: all for statistics, or the first few values' worth of a huge one."""
    place = weight.external
    assert place is not None
    path = external.resolve(folder, place.location, weight.name)
    size = bytes_of(weight) if number <= _MOST_SUMMED else 16 * _FEW
    try:
        with open_plain(path) as stream:
            if place.offset + size > os.fstat(stream.fileno()).st_size:
                raise errors.ModelError("its file is too short")
            stream.seek(place.offset)
            payload = stream.read(size)
    except OSError as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else error.strerror
        raise errors.ModelError(f"its file is {reason}") from error
    if len(payload) < size:
        raise errors.ModelError("its file is too short")
    return payload


def _values(buffer: Buffer, weight: Weight, payload: bytes | None) -> Iterator[str]:
    """Values as text, one by one; nothing for types that Python has no format for (8 bits and less, except int8)."""
    elem = weight.kind.elem
    if payload is not None:
        yield from _raw_values(payload, 0, len(payload), elem)
        return
    for number, kind, _, start, end in fields(buffer, weight.start, weight.end):
        if number == 9:
            yield from _raw_values(buffer, start, end, elem)
        elif number == 6:
            yield f'"{printable(text(buffer[start : min(end, start + 80)]))}"'
        elif number in {4, 10} and elem in {1, 11}:
            yield from map(_number, _unpacked(buffer, start, end, "f" if number == 4 else "d"))
        elif number in {5, 7, 11} and kind == BYTES and (elem in _FORMATS or elem == _BFLOAT16):
            yield from (_stored(value, elem) for value in varints(buffer, start, end))


def _raw_values(buffer: Buffer, start: int, end: int, elem: int) -> Iterator[str]:
    if elem == _BFLOAT16:
        yield from (_stored(value, elem) for value in _unpacked(buffer, start, end, "H"))
    elif elem in _FORMATS:
        yield from map(_number, _unpacked(buffer, start, end, _FORMATS[elem]))


def _unpacked(buffer: Buffer, start: int, end: int, form: str) -> Iterator[Any]:
    size = struct.calcsize(form)
    for at in range(start, end - size + 1, size):
        yield struct.unpack(f"<{form}", buffer[at : at + size])[0]


def _stored(value: int, elem: int) -> str:
    """A value of int32_data and its like: half precision stands there as its bits."""
    if elem == _BFLOAT16:
        return _number(struct.unpack("<f", struct.pack("<I", (value & 0xFFFF) << 16))[0])
    if elem == 10:
        return _number(struct.unpack("<e", struct.pack("<H", value & 0xFFFF))[0])
    return str(bool(value)) if elem == 9 else str(value)


def _number(value: float | int | bool) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def varints(buffer: Buffer, start: int, end: int) -> Iterator[int]:
    """The int64 values of a packed field."""
    while start < end:
        yield signed(varint_at(buffer, start))
        while buffer[start] >= 0x80:
            start += 1
        start += 1


def _statistics(buffer: Buffer, weight: Weight, payload: bytes | None) -> str:
    """Least, greatest and mean value, NaN and inf counted apart; "" for types without an order."""
    import numpy as np

    values = _array(buffer, weight, payload)
    if values is None or values.size == 0 or values.dtype.kind == "b":
        return ""
    finite = values
    strange = ""
    if values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
        not_numbers = int(np.isnan(values).sum())
        infinite = values.size - finite.size - not_numbers
        strange = "".join(f", {number} {what}" for number, what in ((not_numbers, "NaN"), (infinite, "inf")) if number)
    if finite.size == 0:
        return f"no finite value{strange}"
    mean = float(finite.mean(dtype=np.float64))
    return f"least {_number(finite.min().item())}, greatest {_number(finite.max().item())}, mean {mean:.6g}{strange}"


def _array(buffer: Buffer, weight: Weight, payload: bytes | None) -> npt.NDArray[Any] | None:
    import numpy as np

    elem = weight.kind.elem
    if payload is None:
        for number, _, _, start, end in fields(buffer, weight.start, weight.end):
            if number == 9:
                payload = buffer[start:end]
            elif number in {4, 10}:
                return np.frombuffer(buffer[start:end], "<f4" if number == 4 else "<f8")
            elif number in {5, 7, 11} and elem in _FORMATS and elem != 10:
                return np.array(list(varints(buffer, start, end)))
    if payload is None:
        return None
    if elem == _BFLOAT16:
        # bfloat16 is the upper half of a float32.
        import numpy as np

        bits = np.frombuffer(payload[: len(payload) // 2 * 2], "<u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    form = _FORMATS.get(elem)
    whole = len(payload) - len(payload) % struct.calcsize(form) if form else 0
    return np.frombuffer(payload[:whole], np.dtype(form).newbyteorder("<")) if form else None


def values_as_numpy_shows_them(buffer: Buffer, weight: Weight, folder: Path) -> list[str]:
    """The values in the lines of NumPy's own text; none for what NumPy cannot hold, or is too large or not there."""
    import numpy as np

    number = _elements(weight)
    if weight.sparse or number > _MOST_SUMMED:
        return []
    try:
        payload = _external_payload(weight, folder, number) if weight.external else None
    except errors.ModelError:
        return []
    try:
        values = np.empty(0, np.float32) if number == 0 else _array(buffer, weight, payload)
        if values is None or values.size != number:
            return []
        return str(values.reshape(weight.kind.shape)).split("\n")  # type: ignore[arg-type]  # a weight's sizes are known
    except ValueError:  # bytes that are no whole numbers, sizes that are none
        return []
