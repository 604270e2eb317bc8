"""A model taken apart for those who describe it: read straight from the file's bytes, with neither onnx nor numpy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.model.node import DEEPEST_NESTING, string_in
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType
from biopsy.model.value_info import name_of, tensor_type
from biopsy.model.weight import Weight, read_sparse_weight, read_weight
from biopsy.model.wire import BYTES, VARINT, Buffer, fields, signed, string_field, text, varint_at
from biopsy.text import printable

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
    parts = _model_parts(source)
    if not parts.graphs:
        raise errors.ModelError("it has no graph")
    graph = GraphParts()
    for span in parts.graphs:  # protobuf merges a message that stands there twice
        read_graph(source, span, graph)
    return parts, graph


def _model_parts(source: Source) -> ModelParts:
    """The model taken apart. Raises ModelError if it is damaged."""
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
    return parts


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
