"""The index of a model: where each part stands in its bytes, so that a candidate is made by joining byte spans.

Tensors and nodes are numbers. Tensors are numbered in the order of their first appearance, graph inputs first; a
node's number is its place in the graph.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple

from biopsy import errors
from biopsy.model import external, walk
from biopsy.model import parts as value_info
from biopsy.model.load import open_model, refusing_damage
from biopsy.model.parts import (
    ExternalPlace,
    FunctionKey,
    FunctionText,
    Weight,
    read_function,
    read_node,
    read_sparse_weight,
    read_weight,
    string_in,
)
from biopsy.model.tensor_type import STRING, TensorType, ValueType, raw_size
from biopsy.model.wire import BYTES, VARINT, Buffer, fields, signed, string_field, varint_at


class Node(NamedTuple):
    """A node. ``reads`` are its inputs and its bodies' ``captures``, each once, ``writes`` its outputs; none is empty.

    ``inputs`` has -1 for an input that is left out. ``calls`` are the operators that it and its bodies run.
    """

    number: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    calls: tuple[FunctionKey, ...]
    captures: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The node in messages: ``Mul 'attention/scale'``, or ``Mul #17`` if it has no name."""
        return label(self.op_type, self.name, self.number)


def label(op_type: str, name: str, number: int) -> str:
    """A node in messages: ``Mul 'attention/scale'``, or ``Mul #17`` if it has no name."""
    return f"{op_type} {name!r}" if name else f"{op_type} #{number}"


@dataclass(kw_only=True)
class ModelIndex:
    """A model in the form from which candidates are made. ``index_file`` and ``index_bytes`` make it.

    ``node_spans[n]`` is node n as a complete GraphProto field: tag, length and bytes. ``infos`` holds a serialized
    ValueInfoProto per tensor, from the graph's inputs, outputs and value_info.
    """

    path: Path | None
    folder: Path
    buffer: Buffer
    nodes: list[Node] = field(default_factory=list)
    node_spans: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=lambda: defaultdict(count().__next__))
    """Tensor names -> numbers. While the model is read, a new name gets the next number."""
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    infos: dict[int, bytes] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)
    """Tensors in the model's value_info. A candidate that computes them has them there, too."""
    weights: dict[int, Weight] = field(default_factory=dict)
    weight_fields: dict[int, slice] = field(default_factory=dict)
    """Where in ``buffer`` each initializer stands as a complete GraphProto field: tag, length and bytes."""
    annotations: dict[int, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    """Quantization annotations: tensor -> (complete field, the tensors that hold its parameters)."""
    functions: dict[FunctionKey, tuple[bytes, FunctionText]] = field(default_factory=dict)
    graph_name: bytes = b""
    graph_doc: bytes = b""
    graph_end: bytes = b""
    model_head: bytes = b""
    model_tail: bytes = b""
    model_end: bytes = b""
    """Fields that are copied unchanged: those of the graph before its initializers, after them and at its end; those of
    the model before its graph, after it, and after its functions."""
    training: bytes = b""
    opset: int = 0
    ir_version: int = 0

    @cached_property
    def producer(self) -> dict[int, int]:
        """Tensor -> the node that computes it."""
        return {tensor: node.number for node in self.nodes for tensor in node.writes}

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """Tensor -> the nodes that read it, in order, including nodes whose bodies do."""
        readers: dict[int, list[int]] = {}
        for node in self.nodes:
            for tensor in node.reads:
                readers.setdefault(tensor, []).append(node.number)
        return readers

    @cached_property
    def unread(self) -> frozenset[int]:
        """Tensors that a node computes and no node reads."""
        return frozenset(tensor for node in self.nodes for tensor in node.writes if tensor not in self.consumers)

    @cached_property
    def node_reads(self) -> list[tuple[int, ...]]:
        """``reads`` by node number."""
        return [node.reads for node in self.nodes]

    @cached_property
    def node_writes(self) -> list[tuple[int, ...]]:
        """``writes`` by node number."""
        return [node.writes for node in self.nodes]

    @cached_property
    def captors(self) -> dict[int, list[int]]:
        """Tensor -> the nodes whose bodies read it. It cannot be renamed without rewriting the body."""
        nodes: dict[int, list[int]] = {}
        for node in self.nodes:
            for tensor in node.captures:
                nodes.setdefault(tensor, []).append(node.number)
        return nodes

    @cached_property
    def sparse_weights(self) -> frozenset[int]:
        """Initializers that are sparse tensors."""
        return frozenset(tensor for tensor, weight in self.weights.items() if weight.sparse)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the values of all weights, external ones included."""
        return sum(weight.bytes for weight in self.weights.values())

    @property
    def has_external_data(self) -> bool:
        """Whether any initializer is stored in another file."""
        return any(weight.external for weight in self.weights.values())

    def operators_run(self, calls: Iterable[FunctionKey]) -> set[FunctionKey]:
        """These operators and, if they are model-local functions, all operators that they run."""
        return walk.reached(calls, lambda key: self.functions[key][1].calls if key in self.functions else ())

    def node_payload(self, number: int) -> bytes:
        """A node as a serialized NodeProto."""
        span = self.node_spans[number]
        _, _, _, start, end = next(fields(span))
        return span[start:end]

    def fed_inputs(self) -> list[int]:
        """Graph inputs that a caller must feed: those without an initializer."""
        return [tensor for tensor in self.inputs if tensor not in self.weights]

    def fed_types(self) -> dict[str, ValueType | None]:
        """The types of ``fed_inputs`` by name, as from ``value_type``."""
        return {self.names[tensor]: self.value_type(tensor) for tensor in self.fed_inputs()}

    def tensor_type(self, tensor: int) -> TensorType | None:
        """The declared type of a tensor; None if the model declares none, or a sequence, optional or map."""
        if tensor in self.weights:
            return self.weights[tensor].kind
        info = self.infos.get(tensor)
        return value_info.tensor_type(info) if info is not None else None

    def value_type(self, tensor: int) -> ValueType | None:
        """As ``tensor_type``, but also for sequences, optionals and maps."""
        if tensor in self.weights:
            return self.weights[tensor].kind
        info = self.infos.get(tensor)
        return value_info.value_type(info) if info is not None else None

    def declared_type(self, name: str) -> ValueType | None:
        """As ``value_type``, but by name; None also for a name that the model does not have."""
        return self.value_type(self.ids[name]) if name in self.ids else None


def index_file(path: Path, external_data_dir: Path | None = None) -> ModelIndex:
    """Index the model in a file; of a large one, only the parts in use are read.

    Raises UsageError if there is no such file, ModelError if it is not an ONNX model, is damaged, or refers to a file
    that it may not read.
    """
    index = _index(open_model(path), path, (external_data_dir or path.parent).resolve())
    paths: dict[str, Path] = {}
    for weight in index.weights.values():
        if weight.external is not None:
            if weight.external.location not in paths:
                paths[weight.external.location] = external.resolve(index.folder, weight.external.location, weight.name)
            _require_fitting(weight, weight.external, paths[weight.external.location])
    # The few other parts that may refer to a file: protobuf parses them.
    inner = [span for span in (*index.node_spans, index.graph_end) if external.may_refer(span)]
    sparse = [index.buffer[index.weight_fields[tensor]] for tensor in index.sparse_weights]
    functions = [span for span, _ in index.functions.values()]
    parts = [string_field(7, b"".join((*inner, *sparse))), index.training, *functions, index.model_end]
    external.require_safe_locations(b"".join(parts), index.folder, index.path)
    return index


def _require_fitting(weight: Weight, place: ExternalPlace, path: Path) -> None:
    """Raise ModelError if the file of a weight exists but is not a plain file or too short for the weight."""
    if not os.path.lexists(path):
        return
    needed = raw_size(weight.kind.elem, weight.sizes)
    length = place.length if place.length is not None else needed or 0
    span = external.placed(weight.name, path, place.offset, length)
    if needed is not None and weight.kind.elem != STRING:
        external.require_length(weight.name, span, needed)


def index_bytes(data: bytes, folder: Path | None = None) -> ModelIndex:
    """Index a serialized model; ``folder`` holds its external data (by default the current one)."""
    return _index(data, None, (folder or Path()).resolve())


def require_sound(data: bytes, path: Path | None = None) -> None:
    """Raise ModelError if a serialized model is damaged or declares an impossible tensor; ``path`` is for messages."""
    _index(data, path, Path())


def _index(buffer: Buffer, path: Path | None, folder: Path) -> ModelIndex:
    index = ModelIndex(path=path, folder=folder, buffer=buffer)
    with refusing_damage(path, buffer):
        _read_model(index)
    return index


def _read_model(index: ModelIndex) -> None:
    buffer = index.buffer
    graphs = []
    parts: dict[int, list[bytes]] = {}
    for number, kind, tag, start, end in fields(buffer):
        if number == 7 and kind == BYTES:
            graphs.append((start, end))
        elif number == 25 and kind == BYTES:
            payload = buffer[start:end]
            function = read_function(payload)
            index.functions[function.key] = (string_field(25, payload), function)
        else:
            parts.setdefault(number, []).append(buffer[tag:end])
            if number == 8 and kind == BYTES and string_in(buffer[start:end], 1, 0, end - start) in {"", "ai.onnx"}:
                versions = [at for part, kind, _, at, _ in fields(buffer, start, end) if (part, kind) == (2, VARINT)]
                index.opset = signed(varint_at(buffer, versions[-1])) if versions else 0
            elif number == 1 and kind == VARINT:
                index.ir_version = signed(varint_at(buffer, start))
    if not graphs:
        raise errors.ModelError("it has no graph")
    index.training = b"".join(parts.pop(20, ()))
    index.model_head = _joined(parts, 0, 7)
    index.model_tail = _joined(parts, 7, 25)
    index.model_end = _joined(parts, 25)
    # Protobuf merges the graphs if there are several: their repeated fields follow one another.
    places = [place for start, end in graphs for place in fields(buffer, start, end)]
    _read_graph(index, places)


def _read_graph(index: ModelIndex, places: Sequence[tuple[int, int, int, int, int]]) -> None:
    buffer = index.buffer
    other: dict[int, list[bytes]] = {}
    infos: list[tuple[int, bytes]] = []
    nodes: list[tuple[bytes, int]] = []
    annotations: list[bytes] = []
    weights: list[tuple[Weight, slice]] = []
    for number, kind, tag, start, end in places:
        if kind != BYTES:  # no field of GraphProto: protobuf keeps it as an unknown one
            other.setdefault(number, []).append(buffer[tag:end])
        elif number == 1:
            nodes.append((buffer[tag:end], start - tag))
        elif number in {5, 15}:
            read = read_weight if number == 5 else read_sparse_weight
            weights.append((read(buffer, start, end), slice(tag, end)))
        elif number in {11, 12, 13}:
            infos.append((number, buffer[start:end]))
        elif number == 14:
            annotations.append(buffer[start:end])
        else:
            other.setdefault(number, []).append(buffer[tag:end])
    _keep_infos(index, infos)
    for span, start in nodes:
        _keep_node(index, span, start)
    index.weights = {index.ids[weight.name]: weight for weight, _ in weights}
    index.weight_fields = {index.ids[weight.name]: place for weight, place in weights}
    for annotation in annotations:
        _keep_annotation(index, annotation)
    index.ids = dict(index.ids)
    index.names = list(index.ids)
    index.graph_name = _joined(other, 0, 5)
    index.graph_doc = _joined(other, 5, 11)
    index.graph_end = _joined(other, 11)


def _joined(parts: dict[int, list[bytes]], above: int, below: int = 1 << 29) -> bytes:
    """The fields with numbers between ``above`` and ``below``, both excluded, in the order of their numbers."""
    return b"".join(b"".join(parts[number]) for number in sorted(parts) if above < number < below)


_LONG_INFO = 256
"""Bytes. A longer type may have too many dimensions, so it is read at once; all others are read when needed."""


def _keep_infos(index: ModelIndex, infos: Iterable[tuple[int, bytes]]) -> None:
    """Keep one type for each tensor: an input's before an output's, an output's before that in value_info.

    Inputs get the lowest numbers.
    """
    for number, info in sorted(infos, key=lambda entry: entry[0]):
        tensor = index.ids[value_info.name_of(info)]
        if len(info) > _LONG_INFO:
            value_info.tensor_type(info)
        if number == 11:
            index.inputs.append(tensor)
        elif number == 12:
            index.outputs.append(tensor)
        else:
            index.listed.add(tensor)
        if tensor not in index.infos or not value_info.has_type(index.infos[tensor]):
            index.infos[tensor] = info


def _keep_node(index: ModelIndex, span: bytes, start: int) -> None:
    """Keep a node. ``span`` is its complete field, in which its payload begins at ``start``."""
    node = read_node(span[start:])
    ids = index.ids
    inputs = tuple([ids[name] if name else -1 for name in node.inputs])
    captures = tuple([ids[name] for name in node.captures])
    reads = dict.fromkeys([*inputs, *captures])
    reads.pop(-1, None)
    writes = tuple([ids[name] for name in node.outputs if name])
    index.nodes.append(
        Node(
            number=len(index.nodes),
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            inputs=inputs,
            reads=tuple(reads),
            writes=writes,
            calls=node.calls,
            captures=captures,
        )
    )
    index.node_spans.append(span)


def _keep_annotation(index: ModelIndex, annotation: bytes) -> None:
    """Keep a TensorAnnotation: tensor_name = 1, quant_parameter_tensor_names = 2 (key = 1, value = 2: a tensor)."""
    parameters = tuple(
        index.ids[string_in(annotation, 2, start, end)]
        for number, kind, _, start, end in fields(annotation)
        if number == 2 and kind == BYTES
    )
    tensor = index.ids[string_in(annotation, 1, 0, len(annotation))]
    index.annotations[tensor] = (string_field(14, annotation), parameters)
