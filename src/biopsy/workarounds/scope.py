"""A graph as those see it who change some of its nodes: what makes a tensor, who reads it, its type, its value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from biopsy.model import value_info, walk
from biopsy.model.external import is_external
from biopsy.model.storage import elements
from biopsy.model.tensor_type import TensorType
from biopsy.reduction.passes.editing import inferred, names_in
from biopsy.reduction.passes.schemas import opsets_of

if TYPE_CHECKING:
    import numpy as np
    import onnx

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
                kind = value_info.tensor_type(info.SerializeToString())
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
        return {name: each for name, each in found.items() if _is_small(each)}

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


def _is_small(weight: onnx.TensorProto) -> bool:
    return not is_external(weight) and elements(weight.dims) <= _MOST_ELEMENTS


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
