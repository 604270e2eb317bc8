"""What a search over precisions knows of a model: the roles and costs of nodes, the types and values of tensors."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from biopsy import errors
from biopsy.model import onnx_native, walk
from biopsy.model.index import label
from biopsy.model.infer import without_weights
from biopsy.model.sources import NodeSource, source_of
from biopsy.model.walk import unbounded
from biopsy.questions.precision.formats import FLOAT, FLOAT16, WORKING_TYPES, NodeRole, Role, node_role
from biopsy.slow_imports import onnx

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """A node that can compute in several precisions, numbered among them.

    ``place`` is its place in its graph; ``where`` names the enclosing nodes if it is in a body. ``writes`` is its first
    output. ``flops`` and ``bytes`` are its cost as far as shapes are known; open dimensions count as one.
    ``exporter_notes`` is a NodeProto with an exporter's notes on it.
    """

    number: int
    name: str
    op_type: str
    place: int
    where: tuple[str, ...]
    writes: str
    flops: int
    bytes: int
    exporter_notes: onnx.NodeProto | None = field(default=None, compare=False, repr=False)

    @cached_property
    def source(self) -> NodeSource | None:
        """The origin that an exporter noted."""
        return None if self.exporter_notes is None else source_of(self.exporter_notes.SerializeToString())

    @property
    def label(self) -> str:
        """Its name for messages."""
        return " / ".join((*self.where, label(self.op_type, self.name, self.place)))


@dataclass
class PlannedNode:
    """A node, its role, its number if it is a layer, and its bodies.

    Each body is (place of the attribute, place in its ``graphs`` or -1 for ``g``, plan).
    """

    proto: onnx.NodeProto
    part: NodeRole
    number: int = -1
    bodies: list[tuple[int, int, PlannedGraph]] = field(default_factory=list)


@dataclass
class PlannedGraph:
    """A graph, with the element types of its tensors by name.

    ``cast_only`` maps tensors that only Casts to one type read to that type.
    """

    proto: onnx.GraphProto
    elems: dict[str, int]
    nodes: list[PlannedNode] = field(default_factory=list)
    cast_only: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class PrecisionPlan:
    """A model, which must not be changed any more, with its layers.

    ``stays`` counts nodes that compute but cannot change, by the reason; ``passive`` counts nodes without a precision
    of their own, by the operator: they pass on or convert values, or give none that is rounded. ``taken`` are all names
    in use.
    """

    model: onnx.ModelProto
    opset: int
    graph: PlannedGraph
    layers: list[Layer]
    stays: Counter[str]
    passive: Counter[str]
    taken: frozenset[str]


def plan_of(model: onnx.ModelProto, needed: frozenset[int] = frozenset({FLOAT16})) -> PrecisionPlan:
    """The plan of a model without local functions (see ``without_functions``).

    ``needed`` are element types that a node must support to be a layer.
    """
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    reader = _Reader(opset, needed)
    inferred = onnx_native.inferred(without_weights(model)).model.graph  # the types of tensors in bodies too
    graph = reader.read(model.graph, inferred, None, ())
    taken = {name for each in walk.graphs(model) for name in walk.defined(each)}
    taken.update(name for node in walk.nodes(model) for name in (*node.input, node.name))
    return PrecisionPlan(
        model=model,
        opset=opset,
        graph=graph,
        layers=reader.layers,
        stays=reader.stays,
        passive=reader.passive,
        taken=frozenset(taken),
    )


@dataclass
class _KnownTypes:
    """Element types and shapes of the tensors visible in a graph: its own, then those of enclosing graphs."""

    elems: ChainMap[str, int]
    dims: ChainMap[str, Dims]

    def elem(self, name: str) -> int:
        return self.elems.get(name, 0)


class _Reader:
    """Reads a model once. Layers are numbered in the order of computation."""

    def __init__(self, opset: int, needed: frozenset[int]) -> None:
        self._opset = opset
        self._needed = needed
        self.layers: list[Layer] = []
        self.stays: Counter[str] = Counter()
        self.passive: Counter[str] = Counter()

    def read(
        self, graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: _KnownTypes | None, where: tuple[str, ...]
    ) -> PlannedGraph:
        types = _types_in(graph, inferred, outer)
        planned = PlannedGraph(graph, cast(dict[str, int], types.elems.maps[0]))
        for place, (node, typed) in enumerate(zip(graph.node, inferred.node, strict=True)):
            self._infer_outputs(node, types)
            part = node_role(node, self._opset, types.elem, self._needed)
            planned_node = PlannedNode(node, part)
            if part.role is Role.LAYER:
                planned_node.number = len(self.layers)
                self.layers.append(_layer(planned_node, place, where, types))
            elif part.reason:
                self.stays[part.reason] += 1
            else:
                self.passive[node.op_type] += 1
            inside = (*where, label(node.op_type, node.name, place))
            for (at, inner, body), (_, _, twin) in zip(_bodies(node), _bodies(typed), strict=True):
                planned_node.bodies.append(
                    (at, inner, self.read(body, twin, types, (*inside, node.attribute[at].name)))
                )
            planned.nodes.append(planned_node)
        planned.cast_only = _cast_only(graph)
        return planned

    def _infer_outputs(self, node: onnx.NodeProto, types: _KnownTypes) -> None:
        """Set the types of outputs that inference left open, by the inputs and the schema."""
        missing = [name for name in node.output if name and not types.elem(name)]
        if not missing or node.op_type in {"Cast", "Constant"} or node.domain not in ("", "ai.onnx"):
            return
        known = {types.elem(name) for name in node.input if types.elem(name) in WORKING_TYPES}
        if len(known) != 1:
            return
        assumed = types.elems.new_child(dict.fromkeys(missing, known.pop()))
        part = node_role(node, self._opset, lambda name: assumed.get(name, 0))
        for place in part.outputs:
            types.elems[node.output[place]] = assumed[node.output[place]]


def _types_in(graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: _KnownTypes | None) -> _KnownTypes:
    around = outer or _KnownTypes(ChainMap(), ChainMap())
    types = _KnownTypes(around.elems.new_child(), around.dims.new_child())
    for source in (inferred, graph):
        for infos in (source.value_info, source.output, source.input):
            for info in infos:
                if info.type.HasField("tensor_type") and info.type.tensor_type.elem_type:
                    types.elems[info.name] = info.type.tensor_type.elem_type
                    if info.type.tensor_type.HasField("shape"):
                        types.dims[info.name] = tuple(max(1, dim.dim_value) for dim in info.type.tensor_type.shape.dim)
        for weight in source.initializer:
            types.elems[weight.name], types.dims[weight.name] = weight.data_type, tuple(weight.dims)
        for sparse in source.sparse_initializer:
            types.elems[sparse.values.name] = sparse.values.data_type
    return types


def _bodies(node: onnx.NodeProto) -> Iterator[tuple[int, int, onnx.GraphProto]]:
    for at, attribute in enumerate(node.attribute):
        if attribute.HasField("g"):
            yield at, -1, attribute.g
        for inner, graph in enumerate(attribute.graphs):
            yield at, inner, graph


def _layer(node: PlannedNode, place: int, where: tuple[str, ...], types: _KnownTypes) -> Layer:
    proto = node.proto
    shapes_in = [types.dims.get(name) if name else None for name in proto.input]
    shapes_out = [types.dims.get(name) if name else None for name in proto.output]
    return Layer(
        number=node.number,
        name=proto.name,
        op_type=proto.op_type,
        place=place,
        where=where,
        writes=next((name for name in proto.output if name), ""),
        flops=flops_of(proto, shapes_in, shapes_out),
        bytes=4 * sum(math.prod(shape) for shape in (*shapes_in, *shapes_out) if shape is not None),
        exporter_notes=type(proto)(  # without operands and attributes, which may hold weights
            name=proto.name, op_type=proto.op_type, doc_string=proto.doc_string, metadata_props=proto.metadata_props
        ),
    )


def _cast_only(graph: onnx.GraphProto) -> dict[str, int]:
    """Tensors that only Casts to one type read, with that type."""
    targets_of: dict[str, set[int]] = {}
    for node in graph.node:
        target = next((a.i for a in node.attribute if a.name == "to"), 0) if node.op_type == "Cast" else 0
        for name in walk.reads(node):
            targets_of.setdefault(name, set()).add(target)
    results = {info.name for info in graph.output}
    return {
        name: next(iter(targets)) for name, targets in targets_of.items() if len(targets) == 1 and name not in results
    }


Cost = Literal["flops", "bytes", "count"]
"""What to minimize of high layers: operations, bytes read and written, or their number."""

_Shape = tuple[int, ...] | None


def flops_of(node: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> int:
    """Rough floating-point operations of a node: 2 per multiply-add, else 1 per element; 0 if shapes are unknown."""
    result = next((shape for shape in outputs if shape is not None), None)
    first, second = (*inputs, None, None)[:2]
    elements = math.prod(result) if result is not None else 0
    if node.op_type == "MatMul" and first:
        return 2 * elements * first[-1]
    if node.op_type == "Gemm" and first and len(first) == 2:
        turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2 * elements * first[0 if turned else 1]
    if node.op_type == "Conv" and second:
        return 2 * elements * math.prod(second[1:])
    if node.op_type == "ConvTranspose" and first and second:
        return 2 * math.prod(first) * math.prod(second[1:])
    read = max((math.prod(shape) for shape in inputs if shape is not None), default=0)
    return max(elements, read)


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inlined local functions; itself if it calls none. Raises ModelError if onnx cannot inline them."""
    called = walk.called(model)
    if not called:
        return model
    from onnx import inliner

    cause: Exception | None = None
    reason = next((f"{key[1]}: {why}" for key, why in unbounded(model.functions).items() if key in called), None)
    if reason is None:
        try:
            return inliner.inline_local_functions(model, convert_version=True)
        except Exception as error:  # whatever the C++ side raises
            cause, reason = error, str(error)
    raise errors.ModelError(f"the local functions of the model cannot be inlined: {reason}") from cause


Sources: TypeAlias = "Mapping[str, onnx.TensorProto | PlannedNode]"
"""The stored value of a tensor, or the node that computes it, by the tensor's name."""

_BOUNDED = frozenset({"Max", "Min"})
"""Carriers whose constant operand is a limit, and seldom their result."""


def stored_values(
    graph: PlannedGraph, chosen: Callable[[int], bool], outer: Sources = MappingProxyType({})
) -> dict[str, onnx.TensorProto]:
    """The float32 weights and constants that ``chosen`` layers read, also through carriers, by name.

    ``chosen`` takes a layer's number. ``outer`` are the sources that a body sees in enclosing graphs.
    """
    values: dict[str, onnx.TensorProto] = {}
    fed = {info.name for info in graph.proto.input}
    sources: dict[str, onnx.TensorProto | PlannedNode] = {name: each for name, each in outer.items() if name not in fed}
    sources.update((weight.name, weight) for weight in graph.proto.initializer)
    sources.update((name, node) for node in graph.nodes for name in node.proto.output if name)
    seen: set[str] = set()
    for node in graph.nodes:
        waiting = [*_converted_inputs(node)] if node.part.role is Role.LAYER and chosen(node.number) else []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            value = sources.get(name)
            if isinstance(value, PlannedNode):
                if value.part.role is Role.CARRIER and value.proto.op_type not in _BOUNDED:
                    waiting += _converted_inputs(value)
                value = _constant(value.proto)
            if value is not None and value.data_type == FLOAT:
                values[name] = value
        for _, _, body in node.bodies:
            values |= stored_values(body, chosen, sources)
    return values


def _converted_inputs(node: PlannedNode) -> Iterator[str]:
    """The inputs of a node whose type may change."""
    return (node.proto.input[at] for at in node.part.inputs)


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value of a Constant or ConstantOfShape; None for other nodes and values."""
    if node.op_type not in {"Constant", "ConstantOfShape"} or node.domain not in {"", "ai.onnx"}:
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t"):
            return attribute.t
        if attribute.name == "value_float":
            return onnx.helper.make_tensor("", FLOAT, [], [attribute.f])
        if attribute.name == "value_floats":
            return onnx.helper.make_tensor("", FLOAT, [len(attribute.floats)], attribute.floats)
    return None
