"""Models of mixed precision: Casts are inserted where precisions meet, and only nodes are serialized anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

from biopsy.model import walk
from biopsy.model.wire import head, string_field
from biopsy.questions.precision.formats import (
    FLOAT,
    FP32,
    OF_ELEM,
    WORKING_TYPES,
    Form,
    Format,
    Role,
    Weights,
    formats_holding,
    suffix,
)
from biopsy.questions.precision.plan import PlannedGraph, PlannedNode, PrecisionPlan
from biopsy.slow_imports import onnx

Message = TypeVar("Message", "onnx.ModelProto", "onnx.GraphProto")

Levels = Callable[[int], Format]
"""Returns the precision of the layer with a number."""


@dataclass(frozen=True)
class Mixed:
    """The nodes of a mixed model, and the changes of initializers in its main graph.

    ``weights`` are new initializers in another type, ``unread`` the names of those that are no longer read. ``lowered``
    counts the nodes with outputs of another type than in the model.
    """

    graph: onnx.GraphProto
    weights: Mapping[str, onnx.TensorProto]
    unread: frozenset[str]
    lowered: int = 0


def mixed(plan: PrecisionPlan, level: Levels, form: Form, weights: Weights) -> Mixed:
    """The model with every layer at its ``level``; deterministic.

    The returned graph has nodes and value_info only; inputs, outputs and other initializers are the model's.
    """
    caster = _Caster(plan, level, form, weights)
    scope = _Scope(plan.graph, None)
    graph = caster.cast(scope)
    read = {info.name for info in (*plan.model.graph.output, *plan.model.graph.input)}
    read = read.union(*(walk.reads(node) for node in graph.node)) if scope.converted else read
    unread = frozenset(scope.types[name][0] for name in scope.converted) - read
    return Mixed(graph, scope.converted, unread, caster.lowered)


@dataclass
class _Tensor:
    """A tensor of type ``elem`` in the model, and its ``variants``: names by type.

    Casts convert from the variant of type ``home`` and are inserted after the node at ``place``, -1 for the beginning.
    ``exact``: the formats that hold all of its values. ``rounded``: copies with values rounded to another format.
    """

    elem: int
    home: int
    scope: _Scope
    place: int
    exact: frozenset[Format]
    variants: dict[int, str]
    rounded: dict[Format, str] = field(default_factory=dict)
    is_weight: bool = False


@dataclass(frozen=True)
class _Outputs:
    """The outputs of a node: of type ``elem``, rounded to a format, or with values that formats hold exactly."""

    elem: int
    rounds: Format | None = None
    exact: frozenset[Format] = frozenset()


class _Scope:
    """A graph under construction: its tensors, and the casts after each node.

    ``types`` gives for each new name the original tensor and the new type, ``converted`` new initializers by name.
    """

    def __init__(self, planned: PlannedGraph, outer: _Scope | None) -> None:
        self.planned = planned
        self.outer = outer
        self.tensors: dict[str, _Tensor] = {}
        self.casts: dict[int, list[onnx.NodeProto]] = {}
        self.types: dict[str, tuple[str, int]] = {}
        self.converted: dict[str, onnx.TensorProto] = {}

    def find(self, name: str) -> _Tensor | None:
        own = self.tensors.get(name)
        return self.outer.find(name) if own is None and self.outer is not None else own


class _Caster:
    def __init__(self, plan: PrecisionPlan, level: Levels, form: Form, weights: Weights) -> None:
        self._level = level
        self._form = form
        self._weights = weights
        self._taken = set(plan.taken)
        self.lowered = 0

    def cast(self, scope: _Scope) -> onnx.GraphProto:
        proto, elems = scope.planned.proto, scope.planned.elems
        fed = dict.fromkeys(info.name for info in proto.input)
        stored = [*(weight.name for weight in proto.initializer), *(s.values.name for s in proto.sparse_initializer)]
        for name in [*fed, *stored]:
            self._define(scope, -1, name, elems.get(name, 0))
        for weight in proto.initializer:
            if weight.name not in fed and weight.data_type in WORKING_TYPES:
                tensor = scope.tensors[weight.name]
                tensor.is_weight = True
                tensor.exact |= self._weights.exact(weight)
        written = [self._node(scope, place, node) for place, node in enumerate(scope.planned.nodes)]
        for info in scope.planned.proto.output:
            self._ensure_original(scope, info.name)
        return _build_graph(scope, written)

    def _define(self, scope: _Scope, place: int, name: str, elem: int) -> _Tensor | None:
        """Add a tensor in its type in the model; None unless that is a working type."""
        if elem not in WORKING_TYPES:
            return None
        exact = formats_holding(OF_ELEM[elem])
        scope.tensors[name] = _Tensor(elem, elem, scope, place, exact, {elem: name})
        return scope.tensors[name]

    def _node(self, scope: _Scope, place: int, node: PlannedNode) -> onnx.NodeProto:
        if node.part.role not in (Role.LAYER, Role.CARRIER):
            return self._fixed_node(scope, place, node)
        read = {node.proto.input[at]: scope.find(node.proto.input[at]) for at in node.part.inputs}
        tensors = {name: tensor for name, tensor in read.items() if tensor is not None}
        if node.part.role is Role.LAYER:
            level = self._level(node.number)
            elem = level.elem if self._form == "native" else FLOAT
            results = _Outputs(elem, level if self._form == "emulate" and level is not FP32 else None)
        else:
            # The type of all inputs if they agree, else float32. A weight agrees with any type that holds its values.
            computed = {tensor.home for tensor in tensors.values() if not tensor.is_weight}
            homes = computed or {tensor.home for tensor in tensors.values()}
            elem = next(iter(homes)) if len(homes) == 1 else FLOAT
            weights = [tensor for tensor in tensors.values() if tensor.is_weight]
            is_held = all(tensor.home == elem or OF_ELEM[elem] in tensor.exact for tensor in weights)
            elem = elem if is_held and elem in node.part.types else FLOAT
            exact = frozenset.intersection(*(tensor.exact for tensor in tensors.values())) if tensors else frozenset()
            results = _Outputs(elem, exact=exact)
        names = {name: self._read(tensor, name, elem, results.rounds) for name, tensor in tensors.items()}
        return self._rewritten_node(scope, place, node, names, results)

    def _fixed_node(self, scope: _Scope, place: int, node: PlannedNode) -> onnx.NodeProto:
        """A node with its inputs in their original types; a conversion reads any type."""
        for name in dict.fromkeys(node.proto.input):
            tensor = scope.find(name) if name else None
            if tensor is not None and node.part.role is not Role.CONVERSION:
                self._ensure_original(scope, name)
        proto = node.proto
        source = scope.find(proto.input[0]) if node.part.role is Role.CONVERSION and proto.input else None
        if source is not None:
            proto = _renamed(proto, {proto.input[0]: source.variants[source.home]}, range(len(proto.input)), {})
        for name in proto.output:
            tensor = self._define(scope, place, name, scope.planned.elems.get(name, 0)) if name else None
            if tensor is not None and node.part.role is Role.CONVERSION:
                # A conversion that changes no value keeps the exact formats: the second half of a rounding is one.
                read = OF_ELEM.get(scope.planned.elems.get(node.proto.input[0], 0))
                known = frozenset[Format]() if read is None else formats_holding(read)
                known = known if source is None else source.exact
                tensor.exact |= known if OF_ELEM[tensor.elem] in known else frozenset()
        if node.proto.op_type == "Constant" and node.proto.output:
            constant = scope.tensors.get(node.proto.output[0])
            value = next((a.t for a in node.proto.attribute if a.name == "value" and a.HasField("t")), None)
            if constant is not None and value is not None:
                constant.is_weight = True
                constant.exact |= self._weights.exact(value)
        return self._with_bodies(scope, node, proto)

    def _rewritten_node(
        self,
        scope: _Scope,
        place: int,
        node: PlannedNode,
        names: Mapping[str, str],
        results: _Outputs,
    ) -> onnx.NodeProto:
        """The node with renamed inputs, after its outputs are defined."""
        outputs = {}
        changed = [node.proto.output[at] for at in node.part.outputs]
        self.lowered += any(scope.planned.elems[name] != results.elem for name in changed if name)
        for at, name in enumerate(node.proto.output):
            if not name:
                continue
            if at in node.part.outputs:
                outputs[name] = self._define_output(scope, place, name, results)
            else:
                self._define(scope, place, name, scope.planned.elems.get(name, 0))
        kept = [name for at, name in enumerate(node.proto.input) if at not in node.part.inputs]
        for name in kept:
            if name and scope.find(name) is not None:
                self._ensure_original(scope, name)
        return self._with_bodies(scope, node, _renamed(node.proto, names, node.part.inputs, outputs))

    def _define_output(self, scope: _Scope, place: int, name: str, results: _Outputs) -> str:
        """Define an output of a node; returns the name that the node must write to."""
        own, elem, rounds = scope.planned.elems[name], results.elem, results.rounds
        if rounds is None or scope.planned.cast_only.get(name) == rounds.elem:
            written = name if elem == own else self._new_name(f"{name}_{suffix(elem)}", scope, name, elem)
            exact = results.exact | formats_holding(OF_ELEM[elem])
            scope.tensors[name] = _Tensor(own, elem, scope, place, exact, {elem: written})
            return written
        raw = self._new_name(f"{name}_raw", scope, name, elem)
        low = self._name_in_type(scope, name, rounds.elem, own)
        home = self._name_in_type(scope, name, elem, own)
        casts = scope.casts.setdefault(place, [])
        casts += [self._cast(raw, low, rounds.elem), self._cast(low, home, elem)]
        scope.tensors[name] = _Tensor(own, elem, scope, place, formats_holding(rounds), {elem: home, rounds.elem: low})
        return raw

    def _read(self, tensor: _Tensor, name: str, elem: int, rounds: Format | None) -> str:
        """The name of a tensor in a type, rounded to a format if given; adds the casts for it."""
        if rounds is None or rounds in tensor.exact:
            return self._variant(tensor, name, elem)
        if rounds not in tensor.rounded:
            low = self._variant(tensor, name, rounds.elem)
            new_name = self._new_name(f"{low}_{suffix(elem)}", tensor.scope, name, elem)
            tensor.scope.casts.setdefault(tensor.place, []).append(self._cast(low, new_name, elem))
            tensor.rounded[rounds] = new_name
        return tensor.rounded[rounds]

    def _variant(self, tensor: _Tensor, name: str, elem: int) -> str:
        variant = tensor.variants.get(elem)
        if variant is not None:
            return variant
        new_name = self._name_in_type(tensor.scope, name, elem, tensor.elem)
        tensor.variants[elem] = new_name
        weight = (
            self._weights.converted(tensor.scope.planned.proto, name, elem, new_name)
            if (tensor.is_weight and tensor.place == -1 and self._form == "native" and tensor.scope.outer is None)
            else None
        )
        if weight is not None:
            tensor.scope.converted[new_name] = weight
        else:
            source = tensor.variants[tensor.home]
            tensor.scope.casts.setdefault(tensor.place, []).append(self._cast(source, new_name, elem))
        return new_name

    def _ensure_original(self, scope: _Scope, name: str) -> None:
        """Make a tensor available under its original name in its original type."""
        tensor = scope.find(name)
        if tensor is not None:
            self._variant(tensor, name, tensor.elem)

    def _name_in_type(self, scope: _Scope, name: str, elem: int, own: int) -> str:
        return name if elem == own else self._new_name(f"{name}_{suffix(elem)}", scope, name, elem)

    def _new_name(self, wanted: str, scope: _Scope, origin: str, elem: int) -> str:
        """A free name for a variant of the tensor ``origin``, which is recorded with its type."""
        new_name = walk.free_name(wanted, self._taken)
        scope.types[new_name] = (origin, elem)
        return new_name

    def _cast(self, source: str, target: str, elem: int) -> onnx.NodeProto:
        cast = onnx.NodeProto(op_type="Cast", name=walk.free_name(f"{target}_cast", self._taken))
        cast.input.append(source)
        cast.output.append(target)
        cast.attribute.add(name="to", type=onnx.AttributeProto.INT, i=elem)
        return cast

    def _with_bodies(self, scope: _Scope, node: PlannedNode, proto: onnx.NodeProto) -> onnx.NodeProto:
        if not node.bodies:
            return proto
        copy = deepcopy(proto)
        for at, inner, body in node.bodies:
            graph = copy.attribute[at].g if inner < 0 else copy.attribute[at].graphs[inner]
            written = self.cast(_Scope(body, scope))
            del graph.node[:]
            graph.node.extend(written.node)
            del graph.value_info[:]
            graph.value_info.extend(written.value_info)
        return copy


def _renamed(
    proto: onnx.NodeProto, inputs: Mapping[str, str], places: Iterable[int], outputs: Mapping[str, str]
) -> onnx.NodeProto:
    """A copy of a node that reads and writes other names; the node itself if none differs."""
    if all(old == new for names in (inputs, outputs) for old, new in names.items()):
        return proto
    copy = deepcopy(proto)
    for at in places:
        copy.input[at] = inputs.get(proto.input[at], proto.input[at])
    for at, name in enumerate(proto.output):
        copy.output[at] = outputs.get(name, name)
    return copy


def _build_graph(scope: _Scope, written: list[onnx.NodeProto]) -> onnx.GraphProto:
    """A graph of the nodes, each followed by the casts of its outputs, with the value_info of the tensors."""
    graph = type(scope.planned.proto)()
    graph.node.extend(scope.casts.get(-1, ()))
    for place, node in enumerate(written):
        graph.node.append(node)
        graph.node.extend(scope.casts.get(place, ()))
    # Keep the value_info of tensors that still exist, and copy it for their variants.
    infos = {info.name: info for info in scope.planned.proto.value_info}
    if not infos:
        return graph
    existing = {name for node in graph.node for name in node.output} | {w.name for w in scope.planned.proto.initializer}
    graph.value_info.extend(info for name, info in infos.items() if name in existing)
    infos.update((info.name, info) for info in (*scope.planned.proto.input, *scope.planned.proto.output))
    for name, (origin, elem) in scope.types.items():
        if origin in infos and name in existing:
            copy = graph.value_info.add()
            copy.CopyFrom(infos[origin])
            copy.name = name
            copy.type.tensor_type.elem_type = elem
    return graph


_GRAPH, _INITIALIZER = 7, 5
"""Field numbers in ModelProto and GraphProto (onnx.proto3)."""


class Assembly:
    """The parts of a model that no candidate changes, as bytes. Protobuf merges the pieces of a message when parsed.

    ``places`` are serialized TensorProtos by name, for weights that are referred to from another folder.
    """

    def __init__(self, model: onnx.ModelProto, places: Mapping[str, bytes]) -> None:
        graph = model.graph
        self._weights = {
            weight.name: string_field(_INITIALIZER, places.get(weight.name) or weight.SerializeToString())
            for weight in graph.initializer
        }
        self._rest = _without(graph, {"node", "initializer", "value_info"}).SerializeToString()
        self._around = _without(model, {"graph"}).SerializeToString()

    def parts(self, changes: Mixed) -> Sequence[bytes]:
        """The bytes of a mixed model, in pieces."""
        nodes = changes.graph.SerializeToString(deterministic=True)
        weights = [field for name, field in self._weights.items() if name not in changes.unread]
        weights += [string_field(_INITIALIZER, weight.SerializeToString()) for weight in changes.weights.values()]
        length = len(nodes) + len(self._rest) + sum(map(len, weights))
        return [self._around, head(_GRAPH, length), nodes, *weights, self._rest]


def _without(message: Message, names: Collection[str]) -> Message:
    """A copy of a model or graph without some of its fields."""
    copy = type(message)()
    for descriptor, value in message.ListFields():
        if descriptor.name in names:
            continue
        if hasattr(value, "append"):
            getattr(copy, descriptor.name).extend(value)
        else:
            setattr(copy, descriptor.name, value)
    return copy


def unchanged_parts(model: onnx.ModelProto, places: Mapping[str, bytes]) -> Sequence[bytes]:
    """The bytes of the model itself with its weights referred to by ``places``."""
    nodes = type(model.graph)()
    nodes.node.extend(model.graph.node)
    nodes.value_info.extend(model.graph.value_info)
    return Assembly(model, places).parts(Mixed(nodes, {}, frozenset()))
