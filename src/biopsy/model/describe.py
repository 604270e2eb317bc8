"""A model as text for people: read straight from the file's bytes, with neither onnx nor numpy imported.

``inspect model`` is often the check of a reduction and then runs once per candidate, so its start is what it costs.
Every name in the text comes from the file, from anybody: what is not printable is escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.model import weight_formatting as weight_text
from biopsy.model.file_buffer import FileChanged
from biopsy.model.load import open_model
from biopsy.model.node import DEEPEST_NESTING, string_in
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.model.value_info import name_of, tensor_type
from biopsy.model.weight import Weight, read_sparse_weight, read_weight
from biopsy.model.wire import BYTES, VARINT, Buffer, fields, signed, string_field, text, varint_at
from biopsy.quantities import count, size_text
from biopsy.text import printable

_MOST_SHOWN = 20  # elements of a list
_LONGEST_TEXT = 200  # characters of a string attribute

Span: TypeAlias = tuple[int, int]
"""Where a message stands in the buffer: its first byte, and the one after its last."""


# The three classes below are plain ones: making a dataclass takes a millisecond of every start.


class _Source:
    """What every part of the description needs: the bytes, where external data stands, and what to show."""

    def __init__(self, buffer: Buffer, folder: Path, show: Collection[str]) -> None:
        self.buffer = buffer
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


_LONGEST_NAME = 1000


class _Graph:
    """A graph taken apart: spans of its nodes, and its tensors by name, with their types as text."""

    def __init__(self) -> None:
        self.name = ""
        self.nodes: list[Span] = []
        self.weights: list[Weight] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.types: dict[str, str] = {}


class _Model:
    """A model taken apart: spans of its graph and functions, and what it says of itself as text."""

    def __init__(self) -> None:
        self.graphs: list[Span] = []
        self.functions: list[Span] = []
        self.opsets: list[str] = []
        self.producer = ["", ""]
        self.ir_version = "unknown"


def describe(path: Path, show: Collection[str] = (), external_data_dir: Path | None = None) -> str:
    """The description of the model in a file: a summary, then what ``show`` asks for; lines without a final newline.

    ``show`` holds any of "layers" (the nodes), "attrs" (their attributes) and "weights" (values and statistics).
    Missing external data is no error. Raises UsageError if there is no such file, ModelError if it is no ONNX model
    or is damaged.
    """
    source = _Source(open_model(path), external_data_dir or path.parent, show)
    try:
        return "\n".join(_model_lines(source, path))
    except FileChanged:
        raise
    except errors.ModelError as error:
        raise errors.ModelError(f"the model {path} is damaged, cut short or no ONNX model: {error.message}") from error
    except (IndexError, struct.error, RecursionError) as error:
        raise errors.ModelError(f"the model {path} is damaged: a field ends too early") from error


def _model_lines(source: _Source, path: Path) -> Iterator[str]:
    parts = _model_parts(source)
    if not parts.graphs:
        raise errors.ModelError("it has no graph")
    graph = _Graph()
    for span in parts.graphs:  # protobuf merges a message that stands there twice
        _read_graph(source, span, graph)
    yield from _summary(path, graph, parts)
    if source.weights:
        yield from _weight_lines(source, graph, "")
    if source.layers:
        for number, span in enumerate(graph.nodes):
            yield from ("", *_node_lines(source, number, span, [graph.types], "", 0))
        for span in parts.functions:
            yield from ("", *_function_lines(source, span))


def _model_parts(source: _Source) -> _Model:
    parts = _Model()
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


def _opset(source: _Source, span: Span) -> str:
    domain = source.string(1, span)
    version = next(
        (
            signed(varint_at(source.buffer, at))
            for n, k, _, at, _ in fields(source.buffer, *span)
            if (n, k) == (2, VARINT)
        ),
        0,
    )
    return f"opset {version}" if domain in {"", "ai.onnx"} else f"{domain} {version}"


def _summary(path: Path, graph: _Graph, parts: _Model) -> Iterator[str]:
    made = f"made by {' '.join(parts.producer)}".rstrip() if parts.producer[0] else ""
    opsets = sorted(parts.opsets, key=lambda entry: not entry.startswith("opset"))
    named = f"graph {graph.name!r}" if graph.name else ""
    facts = (printable(path.name), named, f"IR version {parts.ir_version}", *opsets, made)
    yield "model      " + " · ".join(filter(None, facts))
    yield from _listed("inputs", graph.inputs, graph)
    yield from _listed("outputs", graph.outputs, graph)
    inside, outside = _weight_bytes(graph.weights)
    yield "holds      " + " · ".join(
        (
            count(len(graph.nodes), "node"),
            count(len(graph.weights), "initializer"),
            count(len(parts.functions), "function"),
            f"{size_text(inside + outside)} of weights" + (f", {size_text(outside)} in other files" if outside else ""),
        )
    )


def _listed(title: str, names: Sequence[str], graph: _Graph) -> Iterator[str]:
    defaults = {weight.name for weight in graph.weights} if title == "inputs" else set()
    for place, name in enumerate(names):
        default = " (has a default)" if name in defaults else ""
        yield f"{title if place == 0 else '':<10} {_with_type(name, [graph.types])}{default}"
    if not names:
        yield f"{title:<10} none"


def _weight_bytes(weights: Sequence[Weight]) -> tuple[int, int]:
    """Bytes of weights inside the model and in other files."""
    inside = outside = 0
    for weight in weights:
        size = weight_text.bytes_of(weight)
        if weight.external:
            outside += size
        else:
            inside += size
    return inside, outside


def _read_graph(source: _Source, span: Span, graph: _Graph) -> None:
    buffer = source.buffer
    for number, kind, _, start, end in fields(buffer, *span):
        if kind != BYTES:
            continue
        if number == 1:
            graph.nodes.append((start, end))
        elif number == 2:
            graph.name = _shown(source.text(start, end))
        elif number in {5, 15}:
            read = read_weight if number == 5 else read_sparse_weight
            graph.weights.append(read(buffer, start, end))
        elif number in {11, 12} or (number == 13 and source.layers):
            info = buffer[start:end]
            name = name_of(info)
            if number != 13:
                (graph.inputs if number == 11 else graph.outputs).append(name)
            graph.types[name] = _info_type(info) or graph.types.get(name, "")
    graph.types.update((weight.name, printable(str(weight.kind))) for weight in graph.weights)


def _info_type(info: bytes) -> str:
    """The type in a ValueInfoProto as text; "" if there is none."""
    spans = [(start, end) for number, kind, _, start, end in fields(info) if number == 2 and kind == BYTES]
    return "".join(_type_text(info[start:end], 0) for start, end in spans[-1:])


def _type_text(payload: bytes, depth: int) -> str:
    """A TypeProto as text, such as ``float32[N,3]`` or ``sequence(float32[...])``."""
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"types are nested more than {DEEPEST_NESTING} deep")
    for number, kind, _, start, end in fields(payload):
        if kind != BYTES:
            continue
        inner = payload[start:end]
        if number == 1:
            known = tensor_type(string_field(2, string_field(1, inner)))
            return printable(str(known)) if known else ""
        if number in {4, 9}:
            within = "".join(_type_text(inner[s:e], depth + 1) for n, _, _, s, e in fields(inner) if n == 1)
            return f"{'sequence' if number == 4 else 'optional'}({within or '?'})"
        if number == 5:
            return _map_text(inner, depth)
        if number == 8:
            known = tensor_type(string_field(2, string_field(1, inner)))
            return f"sparse({printable(str(known)) if known else '?'})"
        if number == 7:
            domain, name = (printable(string_in(inner, part, 0, len(inner))) for part in (1, 2))
            return f"opaque({domain}::{name})"
    return ""


def _map_text(payload: bytes, depth: int) -> str:
    key, value = "?", "?"
    for number, kind, _, start, end in fields(payload):
        if number == 1 and kind == VARINT:
            key = DTYPE_OF_ELEM.get(varint_at(payload, start), "?")
        elif number == 2 and kind == BYTES:
            value = _type_text(payload[start:end], depth + 1) or "?"
    return f"map({key}, {value})"


def _with_type(name: str, scopes: Sequence[dict[str, str]]) -> str:
    """A tensor with its type where one is known in its graph or in one around it."""
    if not name:
        return "(none)"
    known = next((scope[name] for scope in reversed(scopes) if name in scope), "")
    shown = _shown(printable(name))
    return f"{shown} {known}" if known else shown


def _shown(name: str) -> str:
    """A name without its end where nobody could read it all: a stranger's may have as many characters as he likes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}... ({len(name)} characters)"


def _node_lines(
    source: _Source, number: int, span: Span, scopes: list[dict[str, str]], indent: str, depth: int
) -> Iterator[str]:
    buffer = source.buffer
    inputs: list[str] = []
    outputs: list[str] = []
    texts = {3: "", 4: "", 7: "", 8: ""}
    attributes: list[Span] = []
    for part, kind, _, start, end in fields(buffer, *span):
        if kind != BYTES:
            continue
        if part in {1, 2}:
            (inputs if part == 1 else outputs).append(text(buffer[start:end]))
        elif part == 5:
            attributes.append((start, end))
        elif part in texts:
            texts[part] = _shown(source.text(start, end))
    domain = "" if texts[7] in {"", "ai.onnx"} else f"{texts[7]}::"
    overload = f":{texts[8]}" if texts[8] else ""
    yield f"{indent}Node {number:<4} | {texts[3]} [Op: {domain}{texts[4]}{overload}]"
    yield f"{indent}    {', '.join(_with_type(name, scopes) for name in inputs) or '(no inputs)'}"
    yield f"{indent}     -> {', '.join(_with_type(name, scopes) for name in outputs)}"
    for attribute in attributes:
        yield from _attribute_lines(source, attribute, scopes, indent + "    ", depth)


def _attribute_lines(
    source: _Source, span: Span, scopes: list[dict[str, str]], indent: str, depth: int
) -> Iterator[str]:
    """``name = value`` where attributes are shown; bodies of If, Loop and Scan always, with their nodes."""
    name = source.string(1, span)
    bodies = [
        (start, end)
        for number, kind, _, start, end in fields(source.buffer, *span)
        if number in {6, 11} and kind == BYTES
    ]
    for body in bodies:
        yield from _body_lines(source, name, body, scopes, indent, depth + 1)
    if source.attrs and not bodies:
        yield f"{indent}{name} = {_attribute_text(source, span)}"


def _body_lines(
    source: _Source, name: str, span: Span, scopes: list[dict[str, str]], indent: str, depth: int
) -> Iterator[str]:
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"graphs are nested more than {DEEPEST_NESTING} deep")
    graph = _Graph()
    _read_graph(source, span, graph)
    inner = [*scopes, graph.types]
    taken = ", ".join(_with_type(tensor, inner) for tensor in graph.inputs)
    given = ", ".join(_with_type(tensor, inner) for tensor in graph.outputs)
    yield f"{indent}{name} = graph {graph.name!r} ({taken}) -> {given}"
    if source.weights:
        yield from _weight_lines(source, graph, indent + "    ")
    for number, node in enumerate(graph.nodes):
        yield from _node_lines(source, number, node, inner, indent + "    ", depth)


def _function_lines(source: _Source, span: Span) -> Iterator[str]:
    lists: dict[int, list[str]] = {4: [], 5: [], 6: []}
    nodes: list[Span] = []
    types: dict[str, str] = {}
    for number, kind, _, start, end in fields(source.buffer, *span):
        if kind != BYTES:
            continue
        if number in lists:
            lists[number].append(text(source.buffer[start:end]))
        elif number == 7:
            nodes.append((start, end))
        elif number == 12:
            info = source.buffer[start:end]
            types[name_of(info)] = _info_type(info)
        elif number == 11:
            lists[6].append(string_in(source.buffer[start:end], 1, 0, end - start))
    domain, name, overload = (source.string(number, span) for number in (10, 1, 13))
    key = f"{domain}::{name}" + (f":{overload}" if overload else "")
    attributes = f" attributes {', '.join(map(printable, lists[6]))}" if lists[6] else ""
    taken, given = (", ".join(_with_type(tensor, [types]) for tensor in lists[number]) for number in (4, 5))
    yield f"Function {key} ({taken}) -> {given}{attributes}"
    for number, node in enumerate(nodes):
        yield from _node_lines(source, number, node, [types], "    ", 0)


def _weight_lines(source: _Source, graph: _Graph, indent: str) -> Iterator[str]:
    for weight in graph.weights:
        yield f"{indent}Initializer | {_shown(printable(weight.name))} {_weight_text(source, weight)}"


def _weight_text(source: _Source, weight: Weight) -> str:
    return weight_text.describe_weight(source.buffer, weight, source.folder, values=source.weights)


def _attribute_text(source: _Source, span: Span) -> str:
    """The value of an attribute that is no graph (AttributeProto), as text."""
    buffer = source.buffer
    kind_declared = 0
    found: dict[int, list[str]] = {}
    for number, kind, _, start, end in fields(buffer, *span):
        if number == 21:
            return f"@{source.text(start, end)}"
        if number == 20:
            kind_declared = varint_at(buffer, start)
        elif number in _VALUE_FIELDS:
            found.setdefault(number, []).extend(_element_texts(source, number, kind, start, end))
    if not found:
        return {1: "0", 2: "0", 3: '""'}.get(kind_declared, "[]")
    values = [value for number in sorted(found) for value in found[number]]
    if set(found) <= {2, 3, 4, 5, 14, 22}:
        return values[-1]
    more = f", ... ({len(values)} in all)" if len(values) > _MOST_SHOWN else ""
    return f"[{', '.join(values[:_MOST_SHOWN])}{more}]"


_VALUE_FIELDS = frozenset({2, 3, 4, 5, 7, 8, 9, 10, 14, 15, 22, 23})


def _element_texts(source: _Source, number: int, kind: int, start: int, end: int) -> list[str]:
    """The elements in one field of an AttributeProto: one, or several where numbers are packed."""
    buffer = source.buffer
    if number in {2, 7}:
        return _floats(buffer, start, end)
    if number in {3, 8}:
        return _ints(buffer, kind, start, end)
    if number in {4, 9}:
        return [_quoted(buffer[start : min(end, start + 4 * _LONGEST_TEXT)])]
    if number in {14, 15}:
        return [_type_text(buffer[start:end], 0) or "?"]
    read = read_weight if number in {5, 10} else read_sparse_weight
    return [_weight_text(source, read(buffer, start, end))]


def _floats(buffer: Buffer, start: int, end: int) -> list[str]:
    return [f"{value:.7g}" for (value,) in struct.iter_unpack("<f", buffer[start:end])]


def _ints(buffer: Buffer, kind: int, start: int, end: int) -> list[str]:
    if kind != BYTES:
        return [str(signed(varint_at(buffer, start)))]
    return [str(value) for value in weight_text.varints(buffer, start, end)]


def _quoted(payload: bytes) -> str:
    shown = printable(text(payload))
    return f'"{shown[:_LONGEST_TEXT]}..."' if len(shown) > _LONGEST_TEXT else f'"{shown}"'
