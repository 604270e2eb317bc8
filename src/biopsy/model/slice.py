"""Makes models of byte spans: candidates from an indexed model, and a model of one Identity node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from biopsy.model.index import ModelIndex
from biopsy.model.parts import FunctionKey, value_info
from biopsy.model.tensor_type import TensorType
from biopsy.model.wire import fields, head, raw, string_field, varint_field

_INFERENCE_NEEDS = 8192
"""Bytes. A larger initializer is not a shape, so shape inference does not need its values."""


@dataclass(frozen=True)
class Subset:
    """A subset of the nodes of a model, and the tensors that it reads, computes and lacks.

    ``nodes`` are node numbers in ascending order. ``rewired`` maps tensors to the tensors that nodes read instead; the
    bodies of nodes (If, Loop, Scan) are not rewired.
    """

    index: ModelIndex
    nodes: tuple[int, ...]
    rewired: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def rewired_nodes(self) -> dict[int, tuple[int, ...]]:
        """Nodes that read other tensors than in the original -> the tensors that they read in this subset."""
        consumers = self.index.consumers
        kept = set(self.nodes) if self.rewired else ()
        affected = {node for tensor in self.rewired for node in consumers.get(tensor, ()) if node in kept}
        return {
            node: tuple(dict.fromkeys(self.rewired.get(tensor, tensor) for tensor in self.index.node_reads[node]))
            for node in affected
        }

    def reads_of(self, node: int) -> tuple[int, ...]:
        """The tensors that a node reads in this subset."""
        return self.rewired_nodes.get(node) or self.index.node_reads[node]

    @cached_property
    def kept(self) -> frozenset[int]:
        """``nodes`` as a set."""
        return frozenset(self.nodes)

    @cached_property
    def written(self) -> set[int]:
        """Tensors that the nodes compute."""
        return set(chain.from_iterable(map(self.index.node_writes.__getitem__, self.nodes)))

    @cached_property
    def read(self) -> set[int]:
        """Tensors that the nodes read."""
        reads = self.reads_of if self.rewired else self.index.node_reads.__getitem__
        return set(chain.from_iterable(map(reads, self.nodes)))

    @cached_property
    def outside(self) -> list[int]:
        """Tensors that must be given: read but not computed, and no initializers. Inputs of the original count."""
        return sorted((self.read - self.written).difference(self.index.weights))

    @cached_property
    def cuts(self) -> list[int]:
        """Tensors that this subset reads and only the original computes."""
        inputs = set(self.index.inputs)
        return [tensor for tensor in self.outside if tensor not in inputs]

    @cached_property
    def sinks(self) -> list[int]:
        """The outputs of a candidate: the original's outputs that it computes, and tensors that it computes, not reads.

        A tensor that no node of the original reads (such as the mask of a Dropout) is only an output if its node has no
        other result in use: a new output could keep an engine from a fusion.
        """
        index = self.index
        written = self.written
        chosen = set(index.outputs) & written
        ends = written - self.read - chosen
        chosen |= ends - index.unread
        for tensor in sorted(ends & index.unread):
            writes = index.node_writes[index.producer[tensor]]
            if not any(other in chosen or other in self.read for other in writes):
                chosen.add(tensor)
        ordered = [tensor for tensor in index.outputs if tensor in written]
        return ordered + sorted(chosen.difference(ordered))

    @cached_property
    def is_original(self) -> bool:
        """Whether this is the original: all nodes, not rewired."""
        return len(self.nodes) == len(self.index.nodes) and not self.rewired


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The border of a candidate: the types of its inputs and outputs, and its constants.

    ``infos`` has a serialized ValueInfoProto for each tensor whose type the model does not declare, ``frozen`` a
    serialized TensorProto for each cut that becomes a constant. ``inputs`` and ``outputs`` replace those of the subset.
    ``places`` has a serialized TensorProto for each weight whose external data is at another place. ``dropped`` are
    initializers to leave out.
    """

    infos: Mapping[int, bytes]
    frozen: Mapping[int, bytes]
    inputs: Sequence[int] | None = None
    outputs: Sequence[int] | None = None
    places: Mapping[int, bytes] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()


NO_CHANGE = Boundary(infos={}, frozen={})


def candidate_parts(subset: Subset, boundary: Boundary = NO_CHANGE) -> list[bytes]:
    """The serialized candidate as byte strings to join."""
    index = subset.index
    inputs, outputs = _inputs_and_outputs(subset, boundary)
    used = _weights_used(subset, inputs, outputs)
    if boundary.dropped:
        used = [tensor for tensor in used if tensor not in boundary.dropped]
    ends = set(inputs) | set(outputs)
    listed = sorted((index.listed & subset.written) - ends)
    sparse = [tensor for tensor in used if tensor in index.sparse_weights] if index.sparse_weights else []
    dense = [tensor for tensor in used if tensor not in index.sparse_weights] if sparse else used
    annotated = subset.written.union(ends, used) if index.annotations else ()
    rewired = subset.rewired_nodes
    nodes: Iterable[bytes] = map(index.node_spans.__getitem__, subset.nodes)
    if rewired:
        nodes = (_with_inputs(index, n, subset.rewired) if n in rewired else index.node_spans[n] for n in subset.nodes)
    graph = [
        *nodes,
        index.graph_name,
        *_weight_fields(index, dense, 5, boundary.places),
        *(string_field(5, boundary.frozen[tensor]) for tensor in sorted(boundary.frozen)),
        index.graph_doc,
        *_info_fields(index, 11, inputs, boundary.infos),
        *_info_fields(index, 12, outputs, boundary.infos),
        *_info_fields(index, 13, listed, {}),
        *(span for tensor, (span, _) in index.annotations.items() if tensor in annotated),
        *_weight_fields(index, sparse, 15, boundary.places),
        index.graph_end,
    ]
    operators: Collection[FunctionKey] = ()
    if index.functions:
        calls = (index.nodes[node].calls for node in subset.nodes)
        operators = index.functions if subset.is_original else index.operators_run(chain.from_iterable(calls))
    return [
        index.model_head,
        head(7, sum(map(len, graph))),
        *graph,
        index.model_tail,
        index.training if subset.is_original else b"",
        *(span for key, (span, _) in index.functions.items() if key in operators),
        index.model_end,
    ]


def candidate_bytes(subset: Subset, boundary: Boundary = NO_CHANGE) -> bytes:
    """The candidate as a serialized ModelProto."""
    return b"".join(candidate_parts(subset, boundary))


def _with_inputs(index: ModelIndex, node: int, rewired: Mapping[int, int]) -> bytes:
    """A node as a GraphProto field, with other inputs (field 1 of NodeProto)."""
    span = index.node_spans[node]
    _, _, _, start, end = next(fields(span))
    names = (index.names[rewired.get(tensor, tensor)] if tensor >= 0 else "" for tensor in index.nodes[node].inputs)
    renamed = [string_field(1, raw(name)) for name in names]
    others = [span[tag:stop] for number, _, tag, _, stop in fields(span, start, end) if number != 1]
    return string_field(1, b"".join((*renamed, *others)))


def _inputs_and_outputs(subset: Subset, boundary: Boundary) -> tuple[list[int], list[int]]:
    """The inputs and the outputs: first the original's in its order, then new ones by their number."""
    index = subset.index
    if boundary.outputs is not None:
        outputs = list(boundary.outputs)
    else:
        outputs = index.outputs if subset.is_original else subset.sinks
    if boundary.inputs is not None:
        return list(boundary.inputs), outputs
    if subset.is_original:
        return index.inputs, outputs
    needed = subset.read.union(outputs)  # an output may be an input
    inputs = [tensor for tensor in index.inputs if tensor in needed]
    # Before IR version 4, every initializer is an input too.
    inputs += [tensor for tensor in subset.cuts if tensor not in boundary.frozen or index.ir_version < 4]
    return inputs, outputs


def _weights_used(subset: Subset, inputs: Iterable[int], outputs: Iterable[int]) -> list[int]:
    """The needed initializers in their original order: those read or returned, and parameters of quantization."""
    index = subset.index
    if subset.is_original:
        return list(index.weights)
    needed: set[int] = subset.read.union(inputs, outputs)
    if index.annotations:
        touched = needed | subset.written
        for tensor, (_, parameters) in index.annotations.items():
            if tensor in touched:
                needed.update(parameters)
    return list(filter(needed.__contains__, index.weights))


def _weight_fields(
    index: ModelIndex, tensors: Iterable[int], number: int, places: Mapping[int, bytes]
) -> Iterable[bytes]:
    buffer, where = index.buffer, index.weight_fields
    if not places:
        return [buffer[where[tensor]] for tensor in tensors]
    return [string_field(number, places[tensor]) if tensor in places else buffer[where[tensor]] for tensor in tensors]


def _info_fields(index: ModelIndex, number: int, tensors: Iterable[int], infos: Mapping[int, bytes]) -> Iterable[bytes]:
    """Tensors as ValueInfoProto fields of the graph: from ``infos``, else from the model, else without a type."""
    names, of_model = index.names, index.infos
    payloads = [infos.get(tensor) or of_model.get(tensor) or value_info(names[tensor], None) for tensor in tensors]
    return [head(number, len(info)) + info for info in payloads]


def without_weights(index: ModelIndex) -> bytes:
    """The model for shape inference: each large or sparse initializer becomes an input of the same type.

    For ResNet-50, inference takes a millisecond on this model, half a second on the original.
    """
    large = {
        tensor: weight
        for tensor, weight in index.weights.items()
        if weight.external is not None or weight.sparse or weight.end - weight.start > _INFERENCE_NEEDS
    }
    infos = {tensor: value_info(weight.name, weight.kind) for tensor, weight in large.items()}
    inputs = [*index.inputs, *(tensor for tensor in large if tensor not in index.inputs)]
    whole = Subset(index, tuple(range(len(index.nodes))))
    return candidate_bytes(whole, Boundary(infos=infos, frozen={}, inputs=inputs, dropped=frozenset(large)))


OUTPUT = "biopsy_identity"
"""The output of the model of one Identity node, which a check should pass and with which an engine warms up."""

_FLOAT = TensorType(1, (1,))


def identity_of(index: ModelIndex) -> bytes:
    """A serialized model of one Identity node with the opset and, if there is one, the first input of another model."""
    first = next(iter(index.fed_inputs()), None)
    kind = index.tensor_type(first) if first is not None else None
    if first is None or kind is None:
        return identity_bytes(opset=index.opset or 17, ir_version=index.ir_version or 8)
    return identity_bytes(index.names[first], kind, index.opset or 17, index.ir_version or 8)


def identity_bytes(name: str = "x", kind: TensorType = _FLOAT, opset: int = 17, ir_version: int = 8) -> bytes:
    """A serialized model of one Identity node with an input of this name and type, by default float32[1]."""
    node = string_field(1, raw(name)) + string_field(2, OUTPUT.encode()) + string_field(4, b"Identity")
    graph = b"".join(
        (
            string_field(1, node),
            string_field(2, b"identity"),
            string_field(11, value_info(name, kind)),
            string_field(12, value_info(OUTPUT, kind)),
        )
    )
    opsets = string_field(8, varint_field(2, opset))
    return b"".join((varint_field(1, ir_version), head(7, len(graph)), graph, opsets))
