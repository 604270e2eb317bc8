"""A model in a report: its facts, a map of all its nodes, and, of a small model, a graph to draw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.findings.report import Tree
from biopsy.model import parts
from biopsy.model.describe import value_text
from biopsy.model.graph_parts import Source, values_text
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.infer import infer_value_infos
from biopsy.model.parts import string_in
from biopsy.model.slice import without_weights
from biopsy.model.sources import NodeSource, sources_of
from biopsy.model.tensor_type import TensorType, ValueType, elements
from biopsy.model.wire import BYTES, VARINT, fields, signed, text, varint_at
from biopsy.processes.reading import digest_of
from biopsy.records import plain_of
from biopsy.text import shortened

_MOST_VALUES = 200
"""The most inputs or outputs that are listed."""


def model_tree(index: ModelIndex, path: Path | None) -> Tree:
    """The facts of a model; ``path`` is its file, None for a model that has none."""
    head = index.model_head
    producer = " ".join(filter(None, (string_in(head, field, 0, len(head)) for field in (2, 3))))
    return {
        "path": None if path is None else str(path),
        "sha256": None if path is None else digest_of(path),
        "nodes": len(index.nodes),
        "ir_version": index.ir_version,
        "opsets": opsets(index),
        "inputs": values(index, index.fed_inputs()),
        "outputs": values(index, index.outputs),
        "weight_bytes": index.weight_bytes,
        "producer": producer or None,
    }


def model_tree_of(path: Path) -> Tree:
    """The facts of the model in a file; if it cannot be read, only those of the file."""
    try:
        return model_tree(index_file(path), path)
    except errors.BiopsyError:
        return {"path": str(path), "sha256": digest_of(path) if path.is_file() else None}


def opsets(index: ModelIndex) -> dict[str, int]:
    """The opset version by domain; the domain of the standard is ""."""
    versions_by_domain = {}
    for number, kind, _, start, end in fields(index.model_tail):
        if number == 8 and kind == BYTES:
            payload = index.model_tail[start:end]
            domain = string_in(payload, 1, 0, len(payload))
            versions = [varint_at(payload, at) for n, k, _, at, _ in fields(payload) if (n, k) == (2, VARINT)]
            versions_by_domain["" if domain == "ai.onnx" else domain] = signed(versions[-1]) if versions else 0
    return versions_by_domain


def values(index: ModelIndex, tensors: Iterable[int]) -> list[Tree]:
    """Inputs or outputs with the types that the model declares."""
    return [{"name": index.names[tensor], **_type(index.value_type(tensor))} for tensor in list(tensors)[:_MOST_VALUES]]


def _type(kind: ValueType | None) -> Tree:
    """The keys of a type; ``shape`` is None if the rank is unknown or the value is not a tensor."""
    if isinstance(kind, TensorType):
        return {"dtype": kind.dtype, "shape": None if kind.shape is None else list(kind.shape)}
    return {"dtype": None if kind is None else str(kind), "shape": None}


MOST_NODES = 20_000
"""The most nodes of a model that gets a map; a larger map could not be read."""

_LONGEST_NAME = 120
_MOST_READ = 64
"""The most nodes that a node of the map is drawn to read from."""


@dataclass(frozen=True, kw_only=True)
class MeasuredErrors:
    """The largest ratio of error to tolerance by the number of the node, where it was measured."""

    introduced: Mapping[int, float] = field(default_factory=dict)
    propagated: Mapping[int, float] = field(default_factory=dict)


def map_tree(index: ModelIndex, piece: Iterable[int] = (), measured: MeasuredErrors | None = None) -> Tree | None:
    """The map of a model, which marks the nodes of the piece; None if the model is too large for a map."""
    if len(index.nodes) > MOST_NODES:
        return None
    numbers: dict[str, int] = {}
    op = [numbers.setdefault(shortened(node.op_type, _LONGEST_NAME), len(numbers)) for node in index.nodes]
    ratios = vars(measured or MeasuredErrors())
    return {
        "ops": list(numbers),
        "op": op,
        "names": [shortened(node.name, _LONGEST_NAME) for node in index.nodes],
        "reads": [
            sorted({index.producer[tensor] for tensor in node.reads if tensor in index.producer})[:_MOST_READ]
            for node in index.nodes
        ],
        "piece": sorted(piece),
        **{kind: {str(node): ratio for node, ratio in of_kind.items()} for kind, of_kind in ratios.items()},
    }


GRAPH_MOST_NODES = 500
"""The most nodes of a drawn graph: the first ones of a larger model."""

_MOST_ATTRIBUTES = 64
_MOST_NAMES = 1000
"""The most inputs or outputs of a node that are listed."""

_NODE, _OUTPUT, _ATTRIBUTE, _GRAPHS = 1, 2, 5, (6, 11)
"""Fields of onnx.proto3: GraphProto.node, NodeProto.output and .attribute, AttributeProto.g and .graphs."""

_MOST_SUMMARISED = 1 << 12
"""The most elements of a weight whose values are summarised, so that no large weight is read."""


def graph_tree(
    index: ModelIndex,
    *,
    original: ModelIndex | None = None,
    kept: Sequence[int] = (),
    tensor_errors: Mapping[str, Any] | None = None,
    sources: Sequence[NodeSource | None] | None = None,
) -> Tree:
    """The graph of a model: ``nodes``, ``inputs``, ``outputs``, ``tensors``, and how many ``more_nodes`` it has.

    ``kept`` are the nodes of the ``original`` that it was made from, to number each node as there. ``tensor_errors``
    are errors by the name of the tensor. ``sources`` are the lines of code of the nodes, if they are known already.
    """
    numbers = numbers_in(index, original, kept) if original is not None else [None] * len(index.nodes)
    nodes = list(zip(index.nodes, numbers, sources or sources_of(index, original), strict=False))[:GRAPH_MOST_NODES]
    return {
        "nodes": [_node(index, *each) for each in nodes],
        "more_nodes": len(index.nodes) - len(nodes),
        "inputs": values(index, index.fed_inputs()),
        "outputs": values(index, index.outputs),
        "tensors": dict(_tensors(index, tensor_errors or {})),
    }


def numbers_in(index: ModelIndex, original: ModelIndex, kept: Sequence[int]) -> list[int | None]:
    """For each node, its number in the original; None if its name or operator was changed."""
    writers = {original.names[tensor]: number for number in kept for tensor in original.nodes[number].writes}
    numbers: list[int | None] = []
    for node in index.nodes:
        number = next((writers[index.names[tensor]] for tensor in node.writes if index.names[tensor] in writers), None)
        is_same = number is not None and original.nodes[number].op_type == node.op_type
        numbers.append(number if is_same else None)
    return numbers


def _node(index: ModelIndex, node: Node, number: int | None, source: NodeSource | None) -> Tree:
    payload = index.node_payload(node.number)
    return {
        "number": number,
        **plain_of(node, "name op_type domain"),
        "attributes": dict(_attributes(payload, index.folder)),
        "inputs": [index.names[tensor] if tensor >= 0 else "" for tensor in node.inputs[:_MOST_NAMES]],
        "outputs": [text(payload[start:end]) for start, end in _spans(payload, _OUTPUT)][:_MOST_NAMES],
        "bodies": _nodes_inside(payload),
        "source": None if source is None else source.as_tree(),
    }


def _spans(payload: bytes, wanted: int) -> list[tuple[int, int]]:
    return [(start, end) for number, kind, _, start, end in fields(payload) if (number, kind) == (wanted, BYTES)]


def _attributes(payload: bytes, folder: Path) -> Iterator[tuple[str, str]]:
    source = Source(payload, folder, ("attrs",))
    for start, end in _spans(payload, _ATTRIBUTE)[:_MOST_ATTRIBUTES]:
        if not any(number in _GRAPHS for number, *_ in fields(payload, start, end)):
            yield string_in(payload, 1, start, end), value_text(source, (start, end))


def _nodes_inside(payload: bytes) -> int:
    """The number of nodes in the bodies of a node, and in their bodies. The index has bounded the depth."""
    attributes = (payload[start:end] for start, end in _spans(payload, _ATTRIBUTE))
    graphs = [body[start:end] for body in attributes for part in _GRAPHS for start, end in _spans(body, part)]
    nodes = [graph[start:end] for graph in graphs for start, end in _spans(graph, _NODE)]
    return len(nodes) + sum(map(_nodes_inside, nodes))


def _tensors(index: ModelIndex, tensor_errors: Mapping[str, Any]) -> Iterator[tuple[str, Tree]]:
    """The names and facts of all tensors that the listed nodes read or write, and of the outputs."""
    nodes = index.nodes[:GRAPH_MOST_NODES]
    used = [tensor for node in nodes for tensor in (*node.reads, *node.writes)]
    infos = infer_value_infos(without_weights(index)) if len(index.nodes) <= GRAPH_MOST_NODES else {}
    kinds = dict.fromkeys(index.outputs, "output") | dict.fromkeys(index.fed_inputs(), "input")
    kinds |= dict.fromkeys(index.weights, "weight")
    for tensor in dict.fromkeys([*used, *index.outputs[:GRAPH_MOST_NODES]]):
        name, known = index.names[tensor], index.value_type(tensor)
        inferred = parts.value_type(infos[name]) if name in infos else None
        if known is None:
            known = inferred
        elif isinstance(known, TensorType) and isinstance(inferred, TensorType) and not known.is_static:
            known = inferred if inferred.is_static or known.shape is None else known  # the type that says more
        facts = {"kind": kinds.get(tensor, "inner"), **_type(known), "values": _summary(index, tensor)}
        yield name, {**facts, "error": tensor_errors.get(name)}


def _summary(index: ModelIndex, tensor: int) -> str | None:
    """The values of a weight in a line; None for a large weight, which is not read."""
    weight = index.weights.get(tensor)
    if weight is None or weight.sparse:
        return None
    size = elements(dim for dim in weight.kind.shape or () if isinstance(dim, int))
    with contextlib.suppress(errors.ModelError, ValueError, IndexError):
        return values_text(index.buffer, weight, index.folder) or None if size <= _MOST_SUMMARISED else None
    return None
