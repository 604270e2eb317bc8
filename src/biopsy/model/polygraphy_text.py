"""A model as text in the layout of Polygraphy's ``inspect model``, which scripts search: read without onnx and numpy.

What that layout has no place for stands behind what it has: the domain of an operator, local functions. Every name in
the text comes from the file, from anybody: what is not printable is escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.model import weight_formatting
from biopsy.model.describe import contents_line, function_lines, guarded, identity_line, value_text
from biopsy.model.graph_parts import GraphParts, ModelParts, Source, Span, read_graph, short_name, whole_model
from biopsy.model.load import open_model
from biopsy.model.node import DEEPEST_NESTING
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType
from biopsy.model.weight import Weight, read_weight
from biopsy.model.wire import BYTES, fields, signed, text, varint_at
from biopsy.text import printable

_TAB = "    "
_TYPE_ATTRIBUTES = {"to", "dtype", "target_type"}
"""Integer attributes that stand for an element type."""

Scopes: TypeAlias = Sequence[GraphParts]
"""A graph and those around it, the outermost first."""


def polygraphy_text(
    path: Path,
    show: Collection[str] = (),
    external_data_dir: Path | None = None,
    facts: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The lines of the description. ``show`` holds any of "layers", "attrs" (with layers only) and "weights".

    ``facts`` are told of the tensors with these names, behind their types.

    Raises UsageError if there is no such file, ModelError if it is no ONNX model or is damaged.
    """
    source = Source(open_model(path), external_data_dir or path.parent, show, spelled)
    source.facts = facts or {}
    yield from guarded(_lines(source, path), source, path)


def spelled(kind: TensorType) -> str:
    """A type as Polygraphy writes it: ``[dtype=float32, shape=(1, 'N', -1)]``; no shape at all is ``None``."""
    return f"[dtype={_dtype(kind)}, shape={_shape(kind)}]"


def _dtype(kind: TensorType) -> str:
    return kind.dtype.replace("float8_", "float8")


def _shape(kind: TensorType) -> str:
    return "None" if kind.shape is None else str(tuple(-1 if dim is None else dim for dim in kind.shape))


def _lines(source: Source, path: Path) -> Iterator[str]:
    parts, graph = whole_model(source)
    yield identity_line(path, graph, parts)
    yield contents_line(graph, parts)
    yield "[I] ==== ONNX Model ===="
    yield f"{_TAB}{_title(graph, parts)}"
    yield ""
    if source.attrs and graph.doc:
        yield from _indented(["---- Docstring ----", graph.doc, ""])
    yield from _indented(list(_graph_lines(source, [graph], "Graph"))[: -1 if source.layers and graph.nodes else None])
    yield from _additions(source, graph, parts)


def _additions(source: Source, graph: GraphParts, parts: ModelParts) -> Iterator[str]:
    """What the layout has no place for: initializers that are inputs too, and local functions."""
    both = [name for name in graph.inputs if name in graph.weight_names]
    if both:
        named = ", ".join(_name(name) for name in both)
        yield ""
        yield f"{_TAB}---- {len(both)} Initializer(s) that are Graph Input(s) too, as defaults: {named} ----"
    if parts.functions:
        yield ""
        yield f"{_TAB}---- {len(parts.functions)} Function(s) ----"
    if source.layers:
        for span in parts.functions:
            yield from _indented(list(function_lines(source, span)))


def _title(graph: GraphParts, parts: ModelParts) -> str:
    versions = dict(parts.opsets)
    others = ", ".join(f"'{domain}': {version}" for domain, version in versions.items() if domain)
    opset = versions.get("", "unknown")
    return f"Name: {graph.name} | ONNX Opset: {opset}" + (f" | Other Opsets: {{{others}}}" if others else "")


def _graph_lines(source: Source, scopes: Scopes, kind: str) -> Iterator[str]:
    graph = scopes[-1]
    inputs = [name for name in graph.inputs if name not in graph.weight_names]
    for title, names in ((f"{kind} Input(s)", inputs), (f"{kind} Output(s)", graph.outputs)):
        yield f"---- {len(names)} {title} ----"
        yield from braced([_tensor(source, name, scopes) for name in names])
        yield ""
    yield f"---- {len(graph.weights)} Initializer(s) ----"
    yield from _initializers(source, graph)
    yield ""
    yield f"---- {len(graph.nodes)} Node(s) ----"
    if source.layers:
        for number, span in enumerate(graph.nodes):
            yield from _node_lines(source, number, span, scopes)
            yield ""


def _initializers(source: Source, graph: GraphParts) -> Iterator[str]:
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


def _weight_type(weight: Weight) -> str:
    dims = [dim for dim in weight.kind.shape or () if isinstance(dim, int)]
    return f"[dtype={_dtype(weight.kind)}, shape={dims}]"


def _values(source: Source, weight: Weight) -> list[str]:
    """The values as NumPy shows them; of types that NumPy lacks, and where there are none, what is known instead."""
    shown = weight_formatting.values_as_numpy_shows_them(source.buffer, weight, source.folder)
    return shown or [weight_formatting.describe_weight(source.buffer, weight, source.folder, values=True)]


def _name(name: str) -> str:
    return short_name(printable(name))


def _tensor(source: Source, name: str, scopes: Scopes) -> str:
    """A tensor with its type, if its graph or one around it tells; marked if it is an initializer."""
    if not name:
        return ""
    for graph in reversed(scopes):
        if name in graph.types:
            mark = "Initializer | " if name in graph.weight_names else ""
            return _joined(mark + _name(name), graph.types[name], source.facts.get(name, ""))
    return _joined(_name(name), source.facts.get(name, ""))


def _joined(*parts: str) -> str:
    return " ".join(filter(None, parts))


def braced(names: Sequence[str]) -> list[str]:
    """Names in braces, one on each line."""
    return ("{" + ",\n ".join(names) + "}").split("\n")


def _indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    return [_TAB * levels + line if line else "" for line in lines]


def _node_lines(source: Source, number: int, span: Span, scopes: Scopes) -> Iterator[str]:
    if len(scopes) > DEEPEST_NESTING:
        raise errors.ModelError(f"graphs are nested more than {DEEPEST_NESTING} deep")
    names: dict[int, list[str]] = {1: [], 2: []}
    texts = {3: "", 4: "", 7: "", 8: ""}
    attributes: list[Span] = []
    for part, kind, _, start, end in fields(source.buffer, *span):
        if kind == BYTES and part in names:
            names[part].append(text(source.buffer[start:end]))
        elif kind == BYTES and part == 5:
            attributes.append((start, end))
        elif kind == BYTES and part in texts:
            texts[part] = short_name(source.text(start, end))
    domain = f" [Domain: {texts[7]}]" if texts[7] not in {"", "ai.onnx"} else ""
    overload = f" [Overload: {texts[8]}]" if texts[8] else ""
    yield f"Node {number:<4} | {texts[3]} [Op: {texts[4]}]{domain}{overload}"
    yield from _ends(
        [_tensor(source, name, scopes) for name in names[1]], [_tensor(source, name, scopes) for name in names[2]]
    )
    if source.attrs and attributes:
        yield f"{_TAB}---- Attributes ----"
        for attribute in attributes:
            yield from _attribute_lines(source, attribute, texts[3], scopes)


def _ends(inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """What a node reads and writes: in one line if one of both is nothing, else indented below each other."""
    taken, given = braced(inputs), braced(outputs)
    if not (inputs and outputs):
        lines = [*taken[:-1], f"{taken[-1]} -> {given[0]}", *given[1:]]
        return _indented(lines)
    return _indented([*taken, f" -> {given[0]}", *(f"    {line}" for line in given[1:])])


def _attribute_lines(source: Source, span: Span, node: str, scopes: Scopes) -> Iterator[str]:
    name = source.string(1, span)
    head = f"{_TAB}{node}.{name} =" if node else f"{_TAB}{name} ="
    parts = [(number, kind, start, end) for number, kind, _, start, end in fields(source.buffer, *span)]
    bodies = [(start, end) for number, kind, start, end in parts if number in {6, 11} and kind == BYTES]
    tensors = [(start, end) for number, kind, start, end in parts if number == 5 and kind == BYTES]
    for body in bodies:
        graph = GraphParts()
        read_graph(source, body, graph)
        yield f"{head} "
        yield from _indented(list(_graph_lines(source, [*scopes, graph], "Subgraph")), 3)
    if tensors and not bodies:
        weight = read_weight(source.buffer, *tensors[-1])
        yield f"{head} Tensor: {_weight_type(weight)}" + (" | Values:" if source.weights else "")
        if source.weights:
            yield from _indented(_values(source, weight), 2)
    elif not bodies:
        yield f"{head} {_plain_value(source, name, span, parts)}"


def _plain_value(source: Source, name: str, span: Span, parts: Sequence[tuple[int, int, int, int]]) -> str:
    """An attribute that is a number, a text, or a list of these; others as the short description has them."""
    kinds = {number for number, *_ in parts}
    buffer = source.buffer
    if 21 in kinds or not kinds & {2, 3, 4, 7, 8, 9} or kinds & {10, 14, 15, 22, 23}:
        return value_text(source, span)
    found: list[str] = []
    for number, kind, start, end in parts:
        if number in {2, 7}:
            found += [repr(value) for (value,) in struct.iter_unpack("<f", buffer[start:end])]
        elif number in {3, 8}:
            packed = kind == BYTES
            found += (
                map(str, weight_formatting.varints(buffer, start, end)) if packed else [str(_integer(source, start))]
            )
        elif number in {4, 9}:
            found.append(source.text(start, end) if number == 4 else repr(text(buffer[start:end])))
    if kinds & {7, 8, 9}:
        return f"[{', '.join(found)}]"
    if 3 in kinds and name in _TYPE_ATTRIBUTES:
        return DTYPE_OF_ELEM.get(int(found[-1]), found[-1])
    return found[-1]


def _integer(source: Source, start: int) -> int:
    return signed(varint_at(source.buffer, start))
