"""What a spelling is, and the node where one may be found: what can be asked about it and about the graph around it,
and what is written in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from biopsy.model import parts, walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import Shape, TensorType, elements
from biopsy.reduction.passes.editing import inferred, names_in, opsets_of

if TYPE_CHECKING:
    import numpy as np
    import onnx

FLOAT, FLOAT16, DOUBLE, BFLOAT16, INT64, BOOL = 1, 10, 11, 16, 7, 9
FLOATS = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16})

_NEGATIVE_AXES_SINCE = 11


class Unmatched(Exception):
    """A spelling does not hold here, or it cannot be told whether it does."""


def unmatched() -> NoReturn:
    """Leave a draft: the spelling is not for this node."""
    raise Unmatched


class Site:
    """The node at a place of a graph.

    What it is asked raises Unmatched where the answer is not known, so that a draft reads as if all were.
    """

    def __init__(self, scope: Scope, place: int) -> None:
        self.scope = scope
        self.place = place
        self.node = scope.graph.node[place]
        self.absorbed = {place}
        self.written: list[onnx.NodeProto] = []
        self._types: dict[str, TensorType] = {}
        self._names: set[str] = set()

    # What is there

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.scope.opsets.get("", 1)

    def require(self, holds: bool) -> None:
        """Raise Unmatched unless ``holds``."""
        if not holds:
            raise Unmatched

    def inputs(self, count: int) -> list[str]:
        """The first inputs, "" for those that are not given."""
        return [*self.node.input, *[""] * count][:count]

    def attribute(self, name: str, default: Any, node: onnx.NodeProto | None = None) -> Any:
        """The value of an attribute, texts as str; ``default`` if it is not given, rounded to float32 as ONNX does."""
        import numpy as np
        from onnx import helper

        for each in (node or self.node).attribute:
            if each.name == name:
                self.require(not each.ref_attr_name)
                found = helper.get_attribute_value(each)
                return found.decode("utf-8", "replace") if isinstance(found, bytes) else found
        return float(np.float32(default)) if isinstance(default, float) else default

    def kind(self, name: str) -> TensorType:
        """The type of a tensor."""
        found = self._types.get(name) or self.scope.type_of(name)
        return found if found is not None else unmatched()

    def elem(self, name: str) -> int:
        """The element type of a tensor."""
        return self.kind(name).elem

    def shape(self, name: str) -> Shape:
        """The shape of a tensor of known rank."""
        found = self.kind(name).shape
        return found if found is not None else unmatched()

    def rank(self, name: str) -> int:
        """The rank of a tensor."""
        return len(self.shape(name))

    def dims(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor all of whose sizes are known."""
        return tuple(dim if isinstance(dim, int) else unmatched() for dim in self.shape(name))

    def value(self, name: str) -> np.ndarray[Any, Any]:
        """The value of a small constant."""
        found = self.scope.value_of(name) if name else None
        return found if found is not None else unmatched()

    def numbers(self, name: str) -> list[int]:
        """The value of a constant that is a list of whole numbers, or one."""
        return [int(each) for each in self.value(name).reshape(-1)]

    def single(self, name: str) -> float:
        """The value of a constant of one element."""
        found = self.value(name)
        self.require(found.size == 1)
        return float(found.reshape(-1)[0])

    def maker(self, name: str, *operators: str) -> Site:
        """The node that computes a tensor, as its first output, by one of these operators of ONNX; it may go then."""
        place = self.scope.producers.get(name)
        self.require(place is not None)
        assert place is not None
        node = self.scope.graph.node[place]
        self.require(node.op_type in operators and walk.operator(node)[0] == "" and node.output[0] == name)
        self.absorbed.add(place)
        return Site(self.scope, place)

    def axes(self, rank: int, *, by_input_since: int) -> list[int] | None:
        """The axes of the node, none negative, in order; None if they are not given.

        They are an attribute before the opset ``by_input_since``, and then the second input.
        """
        if self.opset >= by_input_since:
            given = self.inputs(2)[1]
            found = self.numbers(given) if given else None
        else:
            found = self.attribute("axes", None)
        if found is None:
            return None
        least = -rank if self.opset >= _NEGATIVE_AXES_SINCE else 0
        self.require(all(least <= axis < rank for axis in found))
        return sorted(axis % rank for axis in found)

    def is_only_output(self, position: int = 0) -> bool:
        """Whether of the node's outputs only this one is wanted."""
        return all(not name or at == position for at, name in enumerate(self.node.output))

    # What is written

    def new(self, operator: str, *inputs: str, like: str = "", outputs: int = 1, domain: str = "", **given: Any) -> str:
        """Write a node and return its first output, the first of ``outputs``.

        Attributes that are None are left out. ``like`` names a tensor of the type and shape that it gives, where later
        steps need that. Raises Unmatched for an operator that the model's opset does not have.
        """
        from onnx import helper

        self.require(bool(domain) or walk.schema_of(operator, self.opset, "") is not None)
        names = [self.free(operator) for _ in range(outputs)]
        attributes = {name: value for name, value in given.items() if value is not None}
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        node = helper.make_node(operator, kept, names, name=names[0], domain=domain or None, **attributes)
        self.written.append(node)
        if like:
            self._types[names[0]] = self.kind(like)
        return names[0]

    def note(self, name: str, elem: int, shape: Shape | None) -> None:
        """Say of what type a tensor is that was written."""
        self._types[name] = TensorType(elem, shape)

    def copy(self, inputs: Sequence[str], **changed: Any) -> str:
        """Write the node again with other inputs; its first output. Attributes that are None are left out."""
        return self.copies(inputs, **changed)[0]

    def copies(self, inputs: Sequence[str], **changed: Any) -> list[str]:
        """As ``copy``; all outputs are returned, "" for those that the node does not give."""
        from onnx import helper

        names = [self._free(f"{self._stem()}/{self.node.op_type}") if name else "" for name in self.node.output]
        own = self.node.name if all(node.name != self.node.name for node in self.written) else ""
        called = own or next(name for name in names if name)
        made = helper.make_node(self.node.op_type, inputs, names, name=called, domain=self.node.domain or None)
        made.attribute.extend(each for each in self.node.attribute if each.name not in changed)
        made.attribute.extend(helper.make_attribute(k, v) for k, v in changed.items() if v is not None)
        self.written.append(made)
        return names

    def constant(self, values: Any, elem: int) -> str:
        """Write a constant of an element type."""
        from onnx import helper, numpy_helper

        made = _tensor(values, elem)
        name = self._free(f"{self._stem()}/Constant")
        made.name = name
        node = helper.make_node("Constant", [], [name], name=name)
        node.attribute.append(helper.make_attribute("value", made))
        self.written.append(node)
        self._types[name] = TensorType(elem, numpy_helper.to_array(made).shape)
        return name

    def scalar(self, value: Any, like: str) -> str:
        """Write a constant of rank 0 with the element type of a tensor."""
        return self.constant(value, self.elem(like))

    def longs(self, values: Sequence[int]) -> str:
        """Write a list of int64."""
        return self.constant(list(values), INT64)

    def reduced(self, operator: str, x: str, axes: Sequence[int] | None, *, keepdims: int = 1) -> str:
        """Write a reduction, its axes where the opset wants them."""
        since = 13 if operator == "ReduceSum" else 18
        if axes is None or self.opset < since:
            return self.new(operator, x, axes=None if axes is None else list(axes), keepdims=keepdims)
        return self.new(operator, x, self.longs(axes), keepdims=keepdims)

    def squeezed(self, x: str, axes: Sequence[int]) -> str:
        """Write a Squeeze; nothing without axes."""
        return self._with_axes("Squeeze", x, axes) if axes else x

    def unsqueezed(self, x: str, axes: Sequence[int]) -> str:
        """Write an Unsqueeze; nothing without axes."""
        return self._with_axes("Unsqueeze", x, axes) if axes else x

    def _with_axes(self, operator: str, x: str, axes: Sequence[int]) -> str:
        if self.opset < 13:
            return self.new(operator, x, axes=list(axes))
        return self.new(operator, x, self.longs(axes))

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """Write a Reshape; 0 keeps a size, -1 is what is left."""
        return self.new("Reshape", x, self.longs(shape))

    def sliced(self, x: str, start: int, end: int, axis: int) -> str:
        """Write a Slice along one axis."""
        if self.opset < 10:
            return self.new("Slice", x, starts=[start], ends=[end], axes=[axis])
        return self.new("Slice", x, self.longs([start]), self.longs([end]), self.longs([axis]))

    def transposed(self, x: str, order: Sequence[int]) -> str:
        """Write a Transpose; nothing if the order stays."""
        return x if list(order) == sorted(order) else self.new("Transpose", x, perm=list(order))

    def cast(self, x: str, elem: int) -> str:
        """Write a Cast."""
        return self.new("Cast", x, to=elem)

    def take(self, other: Site) -> None:
        """Take over what was written at another site."""
        self.written += other.written
        self._names |= other._names

    def free(self, operator: str) -> str:
        """A free name for the result of an operator."""
        return self._free(f"{self._stem()}/{operator}")

    def _stem(self) -> str:
        return next(name for name in self.node.output if name)

    def _free(self, wanted: str) -> str:
        name = walk.free_name(wanted, self.scope.taken)
        self._names.add(name)
        return name

    def forget(self) -> None:
        """Give back the names of what was written."""
        self.scope.taken.difference_update(self._names)


def _tensor(values: Any, elem: int) -> onnx.TensorProto:
    import numpy as np
    from onnx import helper, numpy_helper

    return numpy_helper.from_array(np.asarray(values, dtype=helper.tensor_dtype_to_np_dtype(elem)))


# What a spelling is: how it is found at a node, and what it writes there.

Draft: TypeAlias = Callable[[Site], "str | Sequence[str]"]
"""Writes the other spelling of the node at a site, and returns the tensors that stand for its outputs, in order.

Raises ``site.Unmatched`` where the spelling does not hold, or nobody can tell whether it does.
"""

_EVERY = re.compile(r"all values(;|$)")

ONNX = ""
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """An entry of the table.

    ``operators`` are those of the node at which it is found, the last one where it reads several; none for any
    operator. ``matches`` and ``writes`` say what becomes what. It is found in models whose version of ONNX's own
    operators is ``least_opset`` or later. ``cost`` is said in words. ``exact``: bit for bit the same, also for NaN,
    infinities, negative zero and integers that wrap; otherwise ``holds`` says for which values the two are equal but
    for rounding.
    """

    name: str
    operators: tuple[str, ...]
    matches: str
    writes: str
    draft: Draft
    cost: str
    exact: bool
    holds: str = ""
    least_opset: int = 7
    domain: str = ONNX

    @property
    def limits(self) -> str:
        """For which values only it holds; empty for all, whatever their rounding."""
        return "" if self.exact or _EVERY.match(self.holds) else self.holds

    def may_stand_at(self, domain: str, operator: str) -> bool:
        """Whether it is looked for at a node of this operator."""
        return not self.operators or (domain == self.domain and operator in self.operators)


# A graph as those see it who change some of its nodes: what makes a tensor, who reads it, its type, its value.

_MOST_ELEMENTS = 1024
"""A larger constant is a weight, and its values are not looked at."""

OUTSIDE = -1
"""Among the readers of a tensor: whoever gets the outputs of its graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """A graph of a model, its main one or the body of a node, and the graph around it.

    ``told`` is the same graph with the types that can be inferred; ``taken`` are all names of the model, to which those
    of new tensors and nodes are added.
    """

    model: onnx.ModelProto
    graph: onnx.GraphProto
    told: onnx.GraphProto
    taken: set[str]
    outer: Scope | None = None

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Version of each operator set that the model imports; ONNX's own is ""."""
        return opsets_of(self.model) if self.outer is None else self.outer.opsets

    @cached_property
    def producers(self) -> dict[str, int]:
        """Tensor -> the place of the node that computes it."""
        return {name: place for place, node in enumerate(self.graph.node) for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, set[int]]:
        """Tensor -> the places of the nodes that read it, bodies included, and OUTSIDE."""
        found: dict[str, set[int]] = {info.name: {OUTSIDE} for info in self.graph.output}
        for place, node in enumerate(self.graph.node):
            for name in walk.reads(node):
                found.setdefault(name, set()).add(place)
        return found

    @cached_property
    def own_types(self) -> dict[str, TensorType]:
        """The types of this graph's tensors that can be told."""
        found: dict[str, TensorType] = {}
        for graph in (self.told, self.graph):
            for info in (*graph.value_info, *graph.output, *graph.input):
                kind = parts.tensor_type(info.SerializeToString())
                if kind is not None and (info.name not in found or graph is self.told):
                    found[info.name] = kind
        for weight in self.graph.initializer:
            found[weight.name] = TensorType(weight.data_type, tuple(weight.dims))
        return found

    @cached_property
    def own_constants(self) -> dict[str, onnx.TensorProto]:
        """Small initializers and Constant nodes; an initializer that a caller may replace is none."""
        replaceable = {info.name for info in self.graph.input} if self.model.ir_version >= 4 else frozenset[str]()
        found = {weight.name: weight for weight in self.graph.initializer if weight.name not in replaceable}
        for node in self.graph.node:
            if node.op_type == "Constant" and walk.operator(node)[0] == "" and node.output:
                found.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
        return {
            name: each
            for name, each in found.items()
            if (not is_external(each) and elements(each.dims) <= _MOST_ELEMENTS)
        }

    def type_of(self, name: str) -> TensorType | None:
        """The type of a tensor, of this graph or one around it; None if it cannot be told."""
        found = self.own_types.get(name)
        return self.outer.type_of(name) if found is None and self.outer is not None else found

    def value_of(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a small constant; None for any other tensor."""
        from onnx import numpy_helper

        weight = self.own_constants.get(name)
        if weight is None:
            defined = name in self.own_types or name in self.producers
            return self.outer.value_of(name) if self.outer is not None and not defined else None
        return numpy_helper.to_array(weight)

    def bodies_of(self, place: int) -> Iterator[tuple[str, Scope]]:
        """The bodies of a node, each with the attribute that holds it."""
        for ours, told in zip(self.graph.node[place].attribute, self.told.node[place].attribute, strict=True):
            graphs = [(ours.g, told.g)] if ours.HasField("g") else zip(ours.graphs, told.graphs, strict=True)
            for number, (graph, twin) in enumerate(graphs):
                named = f"{ours.name}[{number}]"
                yield named, Scope(model=self.model, graph=graph, told=twin, taken=self.taken, outer=self)


def scope_of(model: onnx.ModelProto) -> Scope:
    """The main graph of a model. Types are inferred without its weights; what cannot be told is missing."""
    return Scope(model=model, graph=model.graph, told=inferred(model).graph, taken=names_in(model))


def scope_at(model: onnx.ModelProto, path: Sequence[tuple[str, str]]) -> Scope | None:
    """The graph at a path of (an output of a node, an attribute with its number); None if it is no more there."""
    scope: Scope | None = scope_of(model)
    for output, attribute in path:
        place = scope.producers.get(output) if scope is not None else None
        if scope is None or place is None:
            return None
        scope = dict(scope.bodies_of(place)).get(attribute)
    return scope
