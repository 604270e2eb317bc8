"""Candidates as bytes: a valid model made by joining spans of the indexed one. The smallest is a model of one
Identity node.
"""

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
"""Bytes: a larger initializer is no shape, and shape inference is not handed its values."""


@dataclass(frozen=True)
class Subset:
    """A subset of the nodes of a model, and what follows from it.

    ``nodes`` are node numbers in ascending order. ``rewired`` maps tensors to the tensors that nodes read instead; the
    body of a node (If, Loop, Scan) goes on reading what it reads.
    """

    index: ModelIndex
    nodes: tuple[int, ...]
    rewired: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def rewired_nodes(self) -> dict[int, tuple[int, ...]]:
        """Nodes that read other tensors than in the original: node -> the tensors it reads now."""
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
        """The nodes, to be asked whether one is among them."""
        return frozenset(self.nodes)

    @cached_property
    def written(self) -> set[int]:
        """Tensors that the kept nodes compute."""
        return set(chain.from_iterable(map(self.index.node_writes.__getitem__, self.nodes)))

    @cached_property
    def read(self) -> set[int]:
        """Tensors that the kept nodes read."""
        reads = self.reads_of if self.rewired else self.index.node_reads.__getitem__
        return set(chain.from_iterable(map(reads, self.nodes)))

    @cached_property
    def outside(self) -> list[int]:
        """Tensors that must come from outside: read, not computed, and no initializer. Original inputs included."""
        return sorted((self.read - self.written).difference(self.index.weights))

    @cached_property
    def cuts(self) -> list[int]:
        """Tensors that the original computes and this subset does not, but reads."""
        inputs = set(self.index.inputs)
        return [tensor for tensor in self.outside if tensor not in inputs]

    @cached_property
    def sinks(self) -> list[int]:
        """The outputs of a candidate: original outputs it computes, and the ends of what it computes.

        An end that nobody in the original reads (the unused mask of a Dropout) is only taken when its node has no
        other: a new output could keep an engine from a fusion.
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
    def is_whole(self) -> bool:
        """Whether no node is missing."""
        return len(self.nodes) == len(self.index.nodes) and not self.rewired


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """How a candidate meets what it no longer computes.

    ``infos`` gives a serialized ValueInfoProto for tensors whose type the model does not declare; ``frozen`` a
    serialized TensorProto for each cut that becomes a constant. ``inputs`` and ``outputs`` replace what a subset
    would choose; ``places`` the serialized TensorProto of weights whose external data is referred to anew;
    ``dropped`` are initializers to leave out.
    """

    infos: Mapping[int, bytes]
    frozen: Mapping[int, bytes]
    inputs: Sequence[int] | None = None
    outputs: Sequence[int] | None = None
    places: Mapping[int, bytes] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()


NO_CHANGE = Boundary(infos={}, frozen={})


def candidate_parts(subset: Subset, boundary: Boundary = NO_CHANGE) -> list[bytes]:
    """The candidate as a list of byte strings to be written one after the other."""
    index = subset.index
    graph = _graph_parts(subset, boundary)
    length = sum(map(len, graph))
    functions = index.functions.keys() if subset.is_whole else _functions_used(index, subset.nodes)
    training = index.training if subset.is_whole else b""
    return [
        index.model_head,
        head(7, length),
        *graph,
        index.model_tail,
        training,
        *(span for key, (span, _) in index.functions.items() if key in functions),
        index.model_end,
    ]


def candidate_bytes(subset: Subset, boundary: Boundary = NO_CHANGE) -> bytes:
    """The candidate as one byte string: a serialized ModelProto."""
    return b"".join(candidate_parts(subset, boundary))


def _graph_parts(subset: Subset, boundary: Boundary) -> list[bytes]:
    index = subset.index
    inputs, outputs = _ends(subset, boundary)
    used = _weights_used(subset, inputs, outputs)
    if boundary.dropped:
        used = [tensor for tensor in used if tensor not in boundary.dropped]
    shown = set(inputs) | set(outputs)
    listed = sorted((index.listed & subset.written) - shown)
    sparse = [tensor for tensor in used if tensor in index.sparse_weights] if index.sparse_weights else []
    dense = [tensor for tensor in used if tensor not in index.sparse_weights] if sparse else used
    return [
        *_node_fields(subset),
        index.graph_name,
        *_weight_fields(index, dense, 5, boundary.places),
        *(string_field(5, boundary.frozen[tensor]) for tensor in sorted(boundary.frozen)),
        index.graph_doc,
        *_info_fields(index, 11, inputs, boundary.infos),
        *_info_fields(index, 12, outputs, boundary.infos),
        *_info_fields(index, 13, listed, {}),
        *(_annotation_fields(index, subset.written | shown | set(used)) if index.annotations else ()),
        *_weight_fields(index, sparse, 15, boundary.places),
        index.graph_end,
    ]


def _node_fields(subset: Subset) -> Iterable[bytes]:
    index = subset.index
    if not subset.rewired_nodes:
        return map(index.node_spans.__getitem__, subset.nodes)
    return (
        _with_inputs(index, node, subset.rewired) if node in subset.rewired_nodes else index.node_spans[node]
        for node in subset.nodes
    )


def _with_inputs(index: ModelIndex, node: int, rewired: Mapping[int, int]) -> bytes:
    """A node as a GraphProto field, its inputs (field 1 of NodeProto) renamed."""
    span = index.node_spans[node]
    _, _, _, start, end = next(fields(span))
    names = (index.names[rewired.get(tensor, tensor)] if tensor >= 0 else "" for tensor in index.nodes[node].inputs)
    renamed = [string_field(1, raw(name)) for name in names]
    others = [span[tag:stop] for number, _, tag, _, stop in fields(span, start, end) if number != 1]
    return string_field(1, b"".join((*renamed, *others)))


def _ends(subset: Subset, boundary: Boundary) -> tuple[list[int], list[int]]:
    """Inputs and outputs: the original's first and in its order, then new ones by their number."""
    index = subset.index
    if boundary.outputs is not None:
        outputs = list(boundary.outputs)
    else:
        outputs = index.outputs if subset.is_whole else subset.sinks
    if boundary.inputs is not None:
        return list(boundary.inputs), outputs
    if subset.is_whole:
        return index.inputs, outputs
    given = subset.read.union(outputs)  # an output may be an input, handed through
    inputs = [tensor for tensor in index.inputs if tensor in given]
    # Before IR version 4, every initializer is an input too.
    inputs += [tensor for tensor in subset.cuts if tensor not in boundary.frozen or index.ir_version < 4]
    return inputs, outputs


def _weights_used(subset: Subset, inputs: Iterable[int], outputs: Iterable[int]) -> list[int]:
    """Initializers in their original order: those read, given out, or parameters of a tensor's quantization."""
    index = subset.index
    if subset.is_whole:
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


def _annotation_fields(index: ModelIndex, present: Collection[int]) -> Iterable[bytes]:
    return (span for tensor, (span, _) in index.annotations.items() if tensor in present)


def _info_fields(index: ModelIndex, number: int, tensors: Iterable[int], infos: Mapping[int, bytes]) -> Iterable[bytes]:
    """Types of tensors as fields of the graph: as in ``infos``, else as the model has them, else only names."""
    names, own = index.names, index.infos
    found = [infos.get(tensor) or own.get(tensor) or value_info(names[tensor], None) for tensor in tensors]
    return [head(number, len(info)) + info for info in found]


def _functions_used(index: ModelIndex, nodes: Sequence[int]) -> set[FunctionKey]:
    """Model-local functions that the nodes call, directly or through other functions."""
    if not index.functions:
        return set()
    waiting = [key for number in nodes for key in index.nodes[number].calls if key in index.functions]
    used: set[FunctionKey] = set()
    while waiting:
        key = waiting.pop()
        if key not in used:
            used.add(key)
            waiting += [other for other in index.functions[key][1].calls if other in index.functions]
    return used


def without_weights(index: ModelIndex) -> bytes:
    """The whole model with each large initializer as an input of the same type: what shape inference needs to see.

    Inference on it takes a millisecond where the model with its weights takes half a second (ResNet-50).
    """
    large = {
        tensor: weight
        for tensor, weight in index.weights.items()
        if (weight.external is not None or weight.end - weight.start > _INFERENCE_NEEDS)
    }
    infos = {tensor: value_info(weight.name, weight.kind) for tensor, weight in large.items()}
    inputs = [*index.inputs, *(tensor for tensor in large if tensor not in index.inputs)]
    whole = Subset(index, tuple(range(len(index.nodes))))
    return candidate_bytes(whole, Boundary(infos=infos, frozen={}, inputs=inputs, dropped=frozenset(large)))


# A model of one Identity node: what a check should pass, and what an engine warms up with.

OUTPUT = "biopsy_identity"
_FLOAT = TensorType(1, (1,))


def identity_of(index: ModelIndex) -> bytes:
    """A model of one Identity node with the opset of another and, if that has one, its first input."""
    first = next(iter(index.fed_inputs()), None)
    kind = index.tensor_type(first) if first is not None else None
    if first is None or kind is None:
        return identity_bytes(opset=index.opset or 17, ir_version=index.ir_version or 8)
    return identity_bytes(index.names[first], kind, index.opset or 17, index.ir_version or 8)


def identity_bytes(name: str = "x", kind: TensorType = _FLOAT, opset: int = 17, ir_version: int = 8) -> bytes:
    """A serialized model of one Identity node with an input of this name and type; float32 [1] by default."""
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
