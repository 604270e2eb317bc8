"""Describes a model in text, in the layout of Polygraphy's ``inspect model``, which scripts search.

It reads the bytes of the file, without onnx and NumPy. Polygraphy's layout has no place for domains of operators and
for local functions, so these come after the rest. All names come from the file and are escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from biopsy.model import graph_parts
from biopsy.model.graph_parts import (
    AttributeParts,
    GraphParts,
    ModelParts,
    NodeParts,
    Source,
    Span,
    describe_weight,
    info_type,
    short_name,
    type_text,
)
from biopsy.model.load import open_model, refusing_damage
from biopsy.model.parts import Weight, name_of, read_sparse_weight, read_weight, string_in
from biopsy.model.sources import source_of
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType
from biopsy.model.wire import BYTES, fields, signed, text, varint_at, varints
from biopsy.text import count, printable, size_text

_MOST_SHOWN = 20  # elements of a list
_LONGEST_TEXT = 200  # characters of a string attribute


def identity_line(path: Path, parts: ModelParts) -> str:
    """A line with the model's file, name, versions and producer."""
    producer = f"made by {' '.join(parts.producer)}".rstrip() if parts.producer[0] else ""
    opsets = [
        f"{domain} {version}" if domain else f"opset {version}"
        for domain, version in sorted(parts.opsets, key=lambda entry: bool(entry[0]))
    ]
    name = f"graph {parts.graph.name!r}" if parts.graph.name else ""
    facts = (printable(path.name), name, f"IR version {parts.ir_version}", *opsets, producer)
    return "model      " + " · ".join(filter(None, facts))


def contents_line(parts: ModelParts) -> str:
    """A line with the numbers of nodes, initializers and functions, and the size of the weights."""
    graph = parts.graph
    outside = sum(weight.bytes for weight in graph.weights if weight.external)
    total = sum(weight.bytes for weight in graph.weights)
    counts = (count(len(graph.nodes), "node"), count(len(graph.weights), "initializer"))
    weights = f"{size_text(total)} of weights" + (f", {size_text(outside)} in other files" if outside else "")
    return "holds      " + " · ".join((*counts, count(len(parts.functions), "function"), weights))


def _weight_text(source: Source, weight: Weight) -> str:
    return describe_weight(source.buffer, weight, source.folder, values=source.weights)


def value_text(source: Source, span: Span) -> str:
    """The value of an attribute (AttributeProto) that is not a graph, as text."""
    buffer = source.buffer
    declared_kind = 0
    elements: dict[int, list[str]] = {}
    for number, kind, _, start, end in fields(buffer, *span):
        if number == 21:
            return f"@{source.text(start, end)}"
        if number == 20:
            declared_kind = varint_at(buffer, start)
        elif number in _VALUE_FIELDS:
            elements.setdefault(number, []).extend(_element_texts(source, number, kind, start, end))
    if not elements:
        return {1: "0", 2: "0", 3: '""'}.get(declared_kind, "[]")
    values = [value for number in sorted(elements) for value in elements[number]]
    if set(elements) <= {2, 3, 4, 5, 14, 22}:
        return values[-1]
    more = f", ... ({len(values)} in all)" if len(values) > _MOST_SHOWN else ""
    return f"[{', '.join(values[:_MOST_SHOWN])}{more}]"


_VALUE_FIELDS = frozenset({2, 3, 4, 5, 7, 8, 9, 10, 14, 15, 22, 23})


def _element_texts(source: Source, number: int, kind: int, start: int, end: int, *, exact: bool = False) -> list[str]:
    """The elements in one field of an AttributeProto: one, or several if numbers are packed.

    ``exact``: numbers have all digits, and texts are complete: a single one without quotes, others as in Python.
    """
    buffer = source.buffer
    if number in {2, 7}:
        floats = [value for (value,) in struct.iter_unpack("<f", buffer[start:end])]
        return [repr(value) if exact else f"{value:.7g}" for value in floats]
    if number in {3, 8}:
        return list(map(str, varints(buffer, start, end) if kind == BYTES else [signed(varint_at(buffer, start))]))
    if number in {4, 9} and exact:
        return [source.text(start, end) if number == 4 else repr(text(buffer[start:end]))]
    if number in {4, 9}:
        shown = printable(text(buffer[start : min(end, start + 4 * _LONGEST_TEXT)]))
        return [f'"{shown[:_LONGEST_TEXT]}..."' if len(shown) > _LONGEST_TEXT else f'"{shown}"']
    if number in {14, 15}:
        return [type_text(source, buffer[start:end], 0) or "?"]
    read = read_weight if number in {5, 10} else read_sparse_weight
    return [_weight_text(source, read(buffer, start, end))]


_TAB = "    "
_TYPE_ATTRIBUTES = {"to", "dtype", "target_type"}
"""Integer attributes that are element types."""

Scopes: TypeAlias = Sequence[GraphParts]
"""A graph and those around it, the outermost first."""


def description(
    path: Path,
    show: Collection[str] = (),
    external_data_dir: Path | None = None,
    facts: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The lines of the description of the model in a file.

    ``show`` holds any of "layers", "attrs" (with layers only) and "weights". ``facts`` are texts by tensor names, to
    show behind their types. Missing external data is not an error.

    Raises UsageError if there is no such file, ModelError if it is not an ONNX model or is damaged.
    """
    source = Source(open_model(path), external_data_dir or path.parent, show, spelled)
    source.facts = facts or {}
    with refusing_damage(path, source.buffer):
        yield from _model_lines(source, path)


def spelled(kind: TensorType) -> str:
    """A type as Polygraphy writes it: ``[dtype=float32, shape=(1, 'N', -1)]``; an unknown shape is ``None``."""
    shape = None if kind.shape is None else tuple(-1 if dim is None else dim for dim in kind.shape)
    return f"[dtype={_dtype(kind)}, shape={shape}]"


def _dtype(kind: TensorType) -> str:
    return kind.dtype.replace("float8_", "float8")


def _model_lines(source: Source, path: Path) -> Iterator[str]:
    parts = ModelParts(source)
    graph = parts.graph
    yield identity_line(path, parts)
    yield contents_line(parts)
    versions = dict(parts.opsets)
    others = ", ".join(f"'{domain}': {version}" for domain, version in versions.items() if domain)
    more = f" | Other Opsets: {{{others}}}" if others else ""
    yield "[I] ==== ONNX Model ===="
    yield f"{_TAB}Name: {graph.name} | ONNX Opset: {versions.get('', 'unknown')}{more}"
    yield ""
    if source.attrs and graph.doc:
        yield from _indented(["---- Docstring ----", graph.doc, ""])
    lines = list(_graph_lines(source, [graph], "Graph"))
    yield from _indented(lines[: -1 if source.layers and graph.nodes else None])
    defaults = [name for name in graph.inputs if name in graph.weight_names]
    if defaults:
        names = ", ".join(_name(name) for name in defaults)
        yield ""
        yield f"{_TAB}---- {len(defaults)} Initializer(s) that are Graph Input(s) too, as defaults: {names} ----"
    if parts.functions:
        yield ""
        yield f"{_TAB}---- {len(parts.functions)} Function(s) ----"
    if source.layers:
        for span in parts.functions:
            yield from _indented(list(_function_lines(source, span)))


def _graph_lines(source: Source, scopes: Scopes, kind: str) -> Iterator[str]:
    graph = scopes[-1]
    inputs = [name for name in graph.inputs if name not in graph.weight_names]
    for title, names in ((f"{kind} Input(s)", inputs), (f"{kind} Output(s)", graph.outputs)):
        yield f"---- {len(names)} {title} ----"
        yield from braced([_tensor(source, name, scopes) for name in names])
        yield ""
    yield f"---- {len(graph.weights)} Initializer(s) ----"
    if source.weights:
        for number, weight in enumerate(graph.weights):
            if number:
                yield ""
            yield f"Initializer | {_name(weight.name)} {_weight_type(weight)} | Values:"
            yield from _indented(_values(source, weight))
        if not graph.weights:
            yield "{}"
    elif source.layers:
        yield from braced([f"{_name(weight.name)} {spelled(weight.kind)}" for weight in graph.weights])
    yield ""
    yield f"---- {len(graph.nodes)} Node(s) ----"
    if source.layers:
        for number, span in enumerate(graph.nodes):
            yield from _node_lines(source, number, span, scopes)
            yield ""


def _function_lines(source: Source, span: Span) -> Iterator[str]:
    """A local function with its nodes. Raises ModelError if it is damaged."""
    lists: dict[int, list[str]] = {4: [], 5: [], 6: []}
    scope = GraphParts(source)
    for number, kind, _, start, end in fields(source.buffer, *span):
        if kind != BYTES:
            continue
        if number in lists:
            lists[number].append(text(source.buffer[start:end]))
        elif number == 7:
            scope.nodes.append((start, end))
        elif number == 12:
            info = source.buffer[start:end]
            scope.types[name_of(info)] = info_type(source, info)
        elif number == 11:
            lists[6].append(string_in(source.buffer[start:end], 1, 0, end - start))
    domain, name, overload = (source.string(number, span) for number in (10, 1, 13))
    key = f"{domain}::{name}" + (f":{overload}" if overload else "")
    attributes = f" attributes {', '.join(map(printable, lists[6]))}" if lists[6] else ""
    inputs, outputs = (", ".join(_tensor(source, tensor, [scope]) for tensor in lists[number]) for number in (4, 5))
    yield f"Function {key} ({inputs}) -> {outputs}{attributes}"
    for number, node in enumerate(scope.nodes):
        yield from _indented(list(_node_lines(source, number, node, [scope])))


def _weight_type(weight: Weight) -> str:
    return f"[dtype={_dtype(weight.kind)}, shape={weight.sizes}]"


def _values(source: Source, weight: Weight) -> list[str]:
    """The values as NumPy prints them; without these, the description of the weight."""
    lines = graph_parts.values_as_numpy_shows_them(source.buffer, weight, source.folder)
    return lines or [graph_parts.describe_weight(source.buffer, weight, source.folder, values=True)]


def _name(name: str) -> str:
    return short_name(printable(name))


def _tensor(source: Source, name: str, scopes: Scopes) -> str:
    """A tensor with its type, if its graph or one around it has one; marked if it is an initializer."""
    if not name:
        return ""
    for graph in reversed(scopes):
        if name in graph.types:
            mark = "Initializer | " if name in graph.weight_names else ""
            return _joined(mark + _name(name), graph.types[name], source.facts.get(name, ""))
    return _joined(_name(name), source.facts.get(name, ""))


def _joined(*parts: str, by: str = " ") -> str:
    return by.join(filter(None, parts))


def braced(names: Sequence[str]) -> list[str]:
    """Names in braces, one on each line."""
    return ("{" + ",\n ".join(names) + "}").split("\n")


def _indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    return [_TAB * levels + line if line else "" for line in lines]


def _node_lines(source: Source, number: int, span: Span, scopes: Scopes) -> Iterator[str]:
    node = NodeParts(source, span)
    domain = f" [Domain: {node.domain}]" if node.domain else ""
    overload = f" [Overload: {node.overload}]" if node.overload else ""
    yield f"Node {number:<4} | {node.name} [Op: {node.op_type}]{domain}{overload}"
    inputs, outputs = (
        braced([_tensor(source, name, scopes) for name in names]) for names in (node.inputs, node.outputs)
    )
    if node.inputs and node.outputs:  # below each other
        yield from _indented([*inputs, f" -> {outputs[0]}", *(f"    {line}" for line in outputs[1:])])
    else:
        yield from _indented([*inputs[:-1], f"{inputs[-1]} -> {outputs[0]}", *outputs[1:]])
    if source.attrs and node.attributes:
        yield f"{_TAB}---- Attributes ----"
        for attribute in node.attributes:
            yield from _attribute_lines(source, attribute, node.name, scopes)
    origin = source_of(source.buffer[slice(*span)]) if source.attrs and node.is_noted else None
    if origin is not None:
        yield f"{_TAB}from {_name(origin.with_code)}"


def _attribute_lines(source: Source, span: Span, node: str, scopes: Scopes) -> Iterator[str]:
    attribute = AttributeParts(source, span, len(scopes) - 1)
    head = f"{_TAB}{_joined(node, attribute.name, by='.')} ="
    for graph in attribute.bodies:
        yield f"{head} "
        yield from _indented(list(_graph_lines(source, [*scopes, graph], "Subgraph")), 3)
    tensors = [(start, end) for number, kind, start, end in attribute.fields if number == 5 and kind == BYTES]
    if tensors and not attribute.bodies:
        weight = read_weight(source.buffer, *tensors[-1])
        yield f"{head} Tensor: {_weight_type(weight)}" + (" | Values:" if source.weights else "")
        if source.weights:
            yield from _indented(_values(source, weight), 2)
    elif not attribute.bodies:
        yield f"{head} {_exact_value(source, attribute, span)}"


def _exact_value(source: Source, attribute: AttributeParts, span: Span) -> str:
    """The exact value of an attribute that is a number, a text or a list of these; ``value_text`` for others."""
    kinds = {number for number, *_ in attribute.fields}
    if 21 in kinds or not kinds & {2, 3, 4, 7, 8, 9} or kinds & {10, 14, 15, 22, 23}:
        return value_text(source, span)
    value_fields = [field for field in attribute.fields if field[0] in {2, 3, 4, 7, 8, 9}]
    elements = [element for field in value_fields for element in _element_texts(source, *field, exact=True)]
    if kinds & {7, 8, 9}:
        return f"[{', '.join(elements)}]"
    if 3 in kinds and attribute.name in _TYPE_ATTRIBUTES:
        return DTYPE_OF_ELEM.get(int(elements[-1]), elements[-1])
    return elements[-1]
