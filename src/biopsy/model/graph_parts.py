"""Reads the parts of a model for descriptions, weights included, from the bytes of the file without onnx and NumPy."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy import errors
from biopsy.model import external
from biopsy.model.parts import DEEPEST_NESTING, Weight, name_of, read_sparse_weight, read_weight, string_in, tensor_type
from biopsy.model.tensor_type import DTYPE_OF_ELEM, STRING, TensorType, elements
from biopsy.model.wire import BYTES, VARINT, Buffer, fields, signed, string_field, text, varint_at, varints
from biopsy.processes.reading import open_plain
from biopsy.slow_imports import np
from biopsy.text import printable, size_text

if TYPE_CHECKING:
    import numpy.typing as npt

Span: TypeAlias = tuple[int, int]
"""The place of a message in the buffer: its first byte, and the one after its last."""


# The classes are plain ones: defining a dataclass takes a millisecond at each start.


class Source:
    """A serialized model to describe: its bytes, the folder of its external data, and what is to be shown.

    ``show`` may hold "layers", "attrs" and "weights"; ``spell`` writes a type.
    """

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
        """The string field ``wanted`` of a message, escaped for a terminal."""
        return printable(string_in(self.buffer[span[0] : span[1]], wanted, 0, span[1] - span[0]))

    def text(self, start: int, end: int) -> str:
        """The string at these bytes, escaped for a terminal."""
        return printable(text(self.buffer[start:end]))


LONGEST_NAME = 1000


def short_name(name: str) -> str:
    """The name, cut off after ``LONGEST_NAME`` characters."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... ({len(name)} characters)"


class GraphParts:
    """The parts of a graph: spans of its nodes, its weights, and the types of its tensors as text.

    It may have several spans, which protobuf merges. Raises ModelError if it is damaged.
    """

    def __init__(self, source: Source, *spans: Span) -> None:
        self.name = ""
        self.doc = ""
        self.nodes: list[Span] = []
        self.weights: list[Weight] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.types: dict[str, str] = {}
        for span in spans:
            self._read(source, span)
        self.weight_names = frozenset(weight.name for weight in self.weights)

    def _read(self, source: Source, span: Span) -> None:
        buffer = source.buffer
        for number, kind, _, start, end in fields(buffer, *span):
            if kind != BYTES:
                continue
            if number == 1:
                self.nodes.append((start, end))
            elif number == 2:
                self.name = short_name(source.text(start, end))
            elif number == 10:
                self.doc = short_name(source.text(start, end))
            elif number in {5, 15}:
                self.weights.append((read_weight if number == 5 else read_sparse_weight)(buffer, start, end))
            elif number in {11, 12} or (number == 13 and source.layers):
                info = buffer[start:end]
                name = name_of(info)
                if number != 13:
                    (self.inputs if number == 11 else self.outputs).append(name)
                self.types[name] = info_type(source, info) or self.types.get(name, "")
        self.types.update((weight.name, printable(source.spell(weight.kind))) for weight in self.weights)


class ModelParts:
    """The parts of a model: its graph, spans of its functions, its versions and producer.

    Raises ModelError if it has no graph or is damaged.
    """

    def __init__(self, source: Source) -> None:
        self.functions: list[Span] = []
        self.opsets: list[tuple[str, int]] = []
        self.producer = ["", ""]
        self.ir_version = "unknown"
        graphs: list[Span] = []
        for number, kind, _, start, end in fields(source.buffer):
            if number == 1 and kind == VARINT:
                self.ir_version = str(signed(varint_at(source.buffer, start)))
            elif kind == BYTES and number in {7, 25}:
                (graphs if number == 7 else self.functions).append((start, end))
            elif kind == BYTES and number == 8:
                versions = [at for n, k, _, at, _ in fields(source.buffer, start, end) if (n, k) == (2, VARINT)]
                domain = source.string(1, (start, end))
                version = signed(varint_at(source.buffer, versions[0])) if versions else 0
                self.opsets.append(("" if domain == "ai.onnx" else domain, version))
            elif kind == BYTES and number in {2, 3}:
                self.producer[number - 2] = source.text(start, end)
        if not graphs:
            raise errors.ModelError("it has no graph")
        self.graph = GraphParts(source, *graphs)


class NodeParts:
    """The parts of a node: its texts, the names of its tensors, and the spans of its attributes.

    ``is_noted``: it has a name, documentation or metadata, in which an exporter may name its source.
    """

    def __init__(self, source: Source, span: Span) -> None:
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.attributes: list[Span] = []
        self.is_noted = False
        texts = {3: "", 4: "", 7: "", 8: ""}
        for part, kind, _, start, end in fields(source.buffer, *span):
            if kind != BYTES:
                continue
            self.is_noted |= part in {3, 6, 9}
            if part in {1, 2}:
                (self.inputs if part == 1 else self.outputs).append(text(source.buffer[start:end]))
            elif part == 5:
                self.attributes.append((start, end))
            elif part in texts:
                texts[part] = short_name(source.text(start, end))
        self.name, self.op_type, domain, self.overload = texts.values()
        self.domain = "" if domain == "ai.onnx" else domain


class AttributeParts:
    """The parts of an attribute: its name, its bodies, and all its fields as (number, kind, start, end)."""

    def __init__(self, source: Source, span: Span, depth: int) -> None:
        self.name = source.string(1, span)
        self.fields = [(number, kind, start, end) for number, kind, _, start, end in fields(source.buffer, *span)]
        bodies = [(start, end) for number, kind, start, end in self.fields if kind == BYTES and number in {6, 11}]
        if bodies and depth >= DEEPEST_NESTING:
            raise errors.ModelError(f"graphs are nested more than {DEEPEST_NESTING} deep")
        self.bodies = [GraphParts(source, body) for body in bodies]


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
        if number in {1, 8}:
            known = tensor_type(string_field(2, string_field(1, inner)))
            shown = printable(source.spell(known)) if known else ""
            return shown if number == 1 else f"sparse({shown or '?'})"
        if number in {4, 9}:
            within = "".join(type_text(source, inner[s:e], depth + 1) for n, _, _, s, e in fields(inner) if n == 1)
            return f"{'sequence' if number == 4 else 'optional'}({within or '?'})"
        if number == 5:
            return _map_text(source, inner, depth)
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


_FEW = 8  # values shown of a weight; statistics are only for larger tensors
_BFLOAT16 = 16
_FORMATS = {
    1: "f", 2: "B", 3: "b", 4: "H", 5: "h", 6: "i", 7: "q", 9: "?", 10: "e", 11: "d", 12: "I", 13: "Q", _BFLOAT16: "H",
}  # fmt: skip
"""ONNX element type -> its format for ``struct``; bfloat16 as its bits, the upper half of a float32."""
_MOST_SUMMED = 1 << 26  # elements; statistics of a larger weight take seconds and gigabytes


def describe_weight(buffer: Buffer, weight: Weight, folder: Path, *, values: bool) -> str:
    """Type, shape, bytes and place of a weight; with its values if it is small, or with statistics if ``values``.

    ``folder`` holds external data. It is read with ``values`` only; the text says if it is missing or unsafe.
    """
    parts = [printable(str(weight.kind)), "sparse" if weight.sparse else "", size_text(weight.bytes)]
    if weight.external:
        parts.append(f"in {printable(weight.external.location)} at {weight.external.offset}")
    if not weight.sparse and (values or (elements(weight.sizes) <= _FEW and not weight.external)):
        parts.append(values_text(buffer, weight, folder))
    return " · ".join(filter(None, parts))


def values_text(buffer: Buffer, weight: Weight, folder: Path) -> str:
    """All values of a small weight that is not sparse; of a larger one, statistics and the first values.

    ``folder`` holds external data; the text says if it is missing or unsafe.
    """
    number = elements(weight.sizes)
    try:
        payload = _external_payload(weight, folder, number)
    except errors.ModelError as error:
        return printable(error.message)
    first = _first_values(buffer, weight, payload, min(number, _FEW))
    if not first:
        return ""
    shown = ", ".join(first) + (", ..." if number > _FEW else "")
    statistics = _statistics(_array(buffer, weight, payload)) if _FEW < number <= _MOST_SUMMED else ""
    return " · ".join(filter(None, [statistics, shown if weight.kind.shape == () else f"[{shown}]"]))


def _external_payload(weight: Weight, folder: Path, number: int) -> bytes | None:
    """The bytes of an external weight, of a huge one only the first ones; None if the weight is not external."""
    place = weight.external
    if place is None:
        return None
    path = external.resolve(folder, place.location, weight.name)
    size = weight.bytes if number <= _MOST_SUMMED else 16 * _FEW
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


def _packed(buffer: Buffer, weight: Weight, payload: bytes | None, most: int | None = None) -> bytes:
    """The values, or at least the first ``most``, in the format of ``_FORMATS``, from whichever field holds them.

    It is empty for types without a format: those of 8 bits or less, except int8 and uint8.
    """
    form = _FORMATS.get(weight.kind.elem)
    if form is None:
        return b""
    size = struct.calcsize(form)
    values = payload or b""
    for number, kind, _, start, end in fields(buffer, weight.start, weight.end) if payload is None else ():
        if number == 9 or (number, form) in {(4, "f"), (10, "d")}:
            values += buffer[start : end if most is None else min(end, start + most * size)]
        elif number in {5, 7, 11} and kind == BYTES:
            numbers = islice(varints(buffer, start, end), most)
            values += b"".join((value % (1 << 64)).to_bytes(8, "little")[:size] for value in numbers)
    return values[: len(values) // size * size]


def _first_values(buffer: Buffer, weight: Weight, payload: bytes | None, most: int) -> list[str]:
    """The first values as text; none if the model has none or Python has no format for them."""
    if weight.kind.elem == STRING:
        places = ((s, e) for number, _, _, s, e in fields(buffer, weight.start, weight.end) if number == 6)
        return [f'"{printable(text(buffer[s : min(e, s + 80)]))}"' for s, e in islice(places, most)]
    form = _FORMATS.get(weight.kind.elem, "B")
    values = (value for (value,) in struct.iter_unpack(f"<{form}", _packed(buffer, weight, payload, most)))
    if weight.kind.elem == _BFLOAT16:
        values = (struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values)
    return [_number(value) for value in islice(values, most)]


def _number(value: float | int | bool) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _statistics(values: npt.NDArray[Any]) -> str:
    """Least, greatest and mean finite value, and the numbers of NaN and inf; "" for types without an order."""
    if values.size == 0 or values.dtype.kind == "b":
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


def _array(buffer: Buffer, weight: Weight, payload: bytes | None) -> npt.NDArray[Any]:
    """The values as a flat array; empty for types without a format."""
    dtype = np.dtype(_FORMATS.get(weight.kind.elem, "f")).newbyteorder("<")
    values = np.frombuffer(_packed(buffer, weight, payload), dtype)
    return (values.astype(np.uint32) << 16).view(np.float32) if weight.kind.elem == _BFLOAT16 else values


def values_as_numpy_shows_them(buffer: Buffer, weight: Weight, folder: Path) -> list[str]:
    """The lines in which NumPy prints the values; none if NumPy has no such type, or values are missing or too many."""
    number = elements(weight.sizes)
    if weight.sparse or number > _MOST_SUMMED:
        return []
    try:
        values = _array(buffer, weight, _external_payload(weight, folder, number))
        if values.size != number:
            return []
        return str(values.reshape(weight.sizes)).split("\n")
    except (errors.ModelError, ValueError):  # missing data, incomplete values or impossible sizes
        return []
