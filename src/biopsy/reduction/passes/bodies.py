"""Fewer outputs of If, Loop and Scan, and fewer nodes inside their bodies."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import walk
from biopsy.reduction.passes.common import (
    Change,
    ChangeSearch,
    Place,
    copied,
    described,
    drop_dead_nodes,
    drop_what_died,
    every_node,
    fresh,
    graph_at,
    inferred,
    is_control_flow,
    is_trivial,
    keep_only,
    leave_out,
    names_in,
    opsets_of,
    places,
    read_in,
    rename,
    types_in,
)
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

Step: TypeAlias = "Generator[Iterable[Change], onnx.ModelProto | None, onnx.ModelProto]"


def bodies(model: onnx.ModelProto) -> ChangeSearch:
    """Drop outputs that nothing reads, with the values loops carry for them; then reduce in each body, inner first.

    Last, drop the nodes around bodies that only served what is gone.
    """
    before, unread = model, unread_outputs(model)

    def without(gone: Sequence[Output]) -> Change:
        return Change(without_outputs(before, gone), f"without {len(gone)} of {len(unread)} unread outputs of bodies")

    gone = yield from leave_out(unread, without)
    model = without(gone).model if gone else model
    for place in reversed(list(places(model))):
        if place:
            body = BodyNodes(model, place)
            kept = yield from minimize_subset(body.nodes, body.proposed)
            model = body.proposed(kept).model if len(kept) < len(body.nodes) else model
            model = yield from _around_nodes(BodyNodes(model, place))
    made = copied(model)
    drop_what_died(made, before)
    if made != model:
        yield [Change(made, "without the nodes that only served bodies")]


def _around_nodes(body: BodyNodes) -> Step:
    """Bypass, or replace by a constant, what is left of a body, one node at a time, from its end."""
    for position in reversed(range(len(body.nodes))):
        node = body.nodes[position]
        words = f"{described(graph_at(body.model, body.place).node[node])} in {body.name}"
        changes = [Change(made, f"around {words}") for made in body.around(node)]
        constant = body.as_constant(node)
        if constant is not None:
            changes.append(Change(constant, f"a constant in place of {words}"))
        answer = (yield changes) if changes else None
        if answer is not None:
            body = BodyNodes(answer, body.place)  # the nodes before this one keep their order
    return body.model


# Outputs of If, Loop and Scan that nothing reads: taken from the node and from its bodies.


@dataclass(frozen=True)
class Output:
    """One output of a control-flow node, by its position."""

    place: Place
    node: int
    position: int


def unread_outputs(model: onnx.ModelProto) -> list[Output]:
    """Outputs that can go: nothing reads them, and inside the body nothing reads the value that a loop carries."""
    found = []
    for place, number, node in every_node(model):
        if is_control_flow(node) and _is_well_formed(node):
            read = read_in(graph_at(model, place))
            unread = [
                Output(place, number, position)
                for position, name in enumerate(node.output)
                if name not in read and _is_free(node, position)
            ]
            found += unread if len(unread) < len(node.output) else unread[1:]
    return found


def without_outputs(model: onnx.ModelProto, gone: Iterable[Output]) -> onnx.ModelProto:
    """The model without those outputs, and without what only they needed inside the bodies."""
    made = copied(model)
    for output in sorted(gone, key=lambda output: (output.place, output.node, output.position), reverse=True):
        node = graph_at(made, output.place).node[output.node]
        _remove(node, output.position)
        for body in walk.bodies(node):
            drop_dead_nodes(body)
    drop_what_died(made, model)
    return made


def _is_well_formed(node: onnx.NodeProto) -> bool:
    """Whether bodies and node agree in their numbers, so that positions mean what they should."""
    inner = 1 if node.op_type == "Loop" else 0
    carried = _carried(node)
    for body in walk.bodies(node):
        if len(body.output) != inner + len(node.output) or carried > len(node.output):
            return False
        if node.op_type == "Loop" and len(body.input) != 2 + carried:
            return False
        if node.op_type == "Scan" and len(body.input) != len(node.input):
            return False
    return True


def _carried(node: onnx.NodeProto) -> int:
    """How many values a loop carries from trip to trip."""
    if node.op_type == "Loop":
        return max(len(node.input) - 2, 0)
    if node.op_type == "Scan":
        scanned = next((entry.i for entry in node.attribute if entry.name == "num_scan_inputs"), 0)
        return max(len(node.input) - scanned, 0)
    return 0


def _is_free(node: onnx.NodeProto, position: int) -> bool:
    """Whether a carried value is read by nothing but what makes it, so that it can go with its input."""
    if position >= _carried(node):
        return True
    body = next(walk.bodies(node))
    first = 2 if node.op_type == "Loop" else 0
    others = {output.name for number, output in enumerate(body.output) if number != position + first // 2}
    needed = set(others)
    for inner in reversed(body.node):
        if needed.intersection(inner.output):
            needed |= walk.reads(inner)
    return body.input[position + first].name not in needed


def _remove(node: onnx.NodeProto, position: int) -> None:
    carried = _carried(node)
    del node.output[position]
    for body in walk.bodies(node):
        del body.output[position + (1 if node.op_type == "Loop" else 0)]
        if position < carried:
            first = 2 if node.op_type == "Loop" else 0
            del body.input[position + first]
            del node.input[position + first]
    for attribute in node.attribute:
        if attribute.name in {"scan_output_axes", "scan_output_directions"} and 0 <= position - carried < len(
            attribute.ints
        ):
            del attribute.ints[position - carried]


# The nodes of one body of If, Loop or Scan, and the models that do without some of them.

_MOST_ELEMENTS = 1 << 16

_IDENTITY_OF_ANYTHING = 16
"""The first opset whose Identity takes sequences and optionals."""


class BodyNodes:
    """The body at a place of a model. The model stays as it is: every answer is a new one."""

    def __init__(self, model: onnx.ModelProto, place: Place) -> None:
        self.model = model
        self.place = place
        self._body = graph_at(model, place)
        *outer, (number, position, _) = place
        self._node = graph_at(model, tuple(outer)).node[number]
        self.name = f"the {self._node.attribute[position].name} of {self._node.name or self._node.op_type}"

    @cached_property
    def nodes(self) -> list[int]:
        """The numbers of the nodes that are worth removing: all but those that only stand for a tensor."""
        return [number for number, node in enumerate(self._body.node) if not is_trivial(node)]

    @cached_property
    def _types(self) -> dict[str, onnx.TypeProto]:
        """Types of the tensors that can be read in the body, those of the graphs around it included."""
        types = types_in(inferred(self.model).graph)
        for depth, (number, _, _) in enumerate(self.place):
            node = graph_at(self.model, self.place[:depth]).node[number]
            body = graph_at(self.model, self.place[: depth + 1])
            # A body is inferred as if it were a model. What a loop carries is as it is before the first trip: onnx's
            # inference forgets those shapes, since they could change.
            alone = copied(self.model)
            alone.graph.CopyFrom(body)
            for position, info in enumerate(alone.graph.input):
                initial = types.get(node.input[position]) if position < len(node.input) else None
                if node.op_type == "Loop" and initial is not None and not info.type.tensor_type.HasField("shape"):
                    info.type.CopyFrom(initial)
            for name in sorted(walk.captures(body) & types.keys()):
                alone.graph.input.add(name=name, type=types[name])
            types |= types_in(inferred(alone).graph)
        return types

    @cached_property
    def _goes_on(self) -> str | None:
        """The output of a Loop without a trip count that ends it: to change it is to wait for ever."""
        counts = self._node.op_type != "Loop" or (self._node.input and self._node.input[0])
        return None if counts or not self._body.output else self._body.output[0].name

    def proposed(self, kept: Sequence[int]) -> Change:
        """The change that leaves only those of ``nodes``."""
        return Change(self.with_only(kept), f"{len(kept)} of {len(self.nodes)} nodes of {self.name}")

    def with_only(self, kept: Iterable[int]) -> onnx.ModelProto:
        """The model with only those of ``nodes``; what the others computed comes from new inputs of the model.

        An output of the body whose node is gone is given by a tensor of the same type that nobody else reads, so that
        what is kept goes on mattering. Where a type is not known a node stays.
        """
        gone = self._that_can_go(set(self.nodes).difference(kept))
        made = copied(self.model)
        if not gone:
            return made
        body = graph_at(made, self.place)
        lost = {name for number in gone for name in body.node[number].output if name}
        for number in sorted(gone, reverse=True):
            del body.node[number]
        read = read_in(body)
        ends = [name for node in body.node if not is_trivial(node) for name in node.output if name and name not in read]
        for output in body.output:
            if output.name in lost:
                end = next((name for name in reversed(ends) if self._agree(name, output.name)), None)
                if end is not None:
                    ends.remove(end)
                    rename(body.node, {end: output.name})
                    lost.discard(output.name)
        drop_dead_nodes(body, is_trivial)
        self._feed(made, body, sorted(lost & read_in(body)))
        return made

    def _that_can_go(self, wanted: set[int]) -> set[int]:
        """The wanted nodes that can go: every output of theirs that is still read can be fed as an input."""
        gone = set(wanted)
        outputs = {info.name for info in self._body.output}
        while True:
            read = set(outputs)
            for number, node in enumerate(self._body.node):
                if number not in gone:
                    read |= walk.reads(node)
            stay = set()
            for number in gone:
                needed = read.intersection(self._body.node[number].output)
                if self._goes_on in needed or not all(map(self._can_feed, needed)):
                    stay.add(number)
            if not stay:
                return gone
            gone -= stay

    def _can_feed(self, name: str) -> bool:
        """Whether the type of a tensor is known well enough for an input, and Identity takes it."""
        kind = self._types.get(name)
        if kind is None or kind.HasField("tensor_type"):
            return kind is not None and kind.tensor_type.HasField("shape")
        return opsets_of(self.model).get("", 1) >= _IDENTITY_OF_ANYTHING

    def _agree(self, one: str, other: str) -> bool:
        """Whether two tensors are of the same type as far as both are known, the element type at least."""
        first, second = self._types.get(one), self._types.get(other)
        if first is None or second is None or first.WhichOneof("value") != "tensor_type":
            return False
        if not first.tensor_type.HasField("shape") or not second.tensor_type.HasField("shape"):
            return bool(first.tensor_type.elem_type == second.tensor_type.elem_type)
        return first == second

    def _feed(self, made: onnx.ModelProto, body: onnx.GraphProto, names: Iterable[str]) -> None:
        """New inputs of the model for tensors of a body; an output of the body is given by an Identity of it."""
        from onnx import helper

        taken = names_in(made)
        elsewhere = [name for graph in walk.graphs(made) for name in walk.defined(graph)]
        outputs = {info.name for info in body.output}
        for name in names:
            plain = name not in elsewhere and name not in outputs
            outside = name if plain else fresh(f"{name}_in", taken)
            made.graph.input.add(name=outside, type=self._types[name])
            if name in outputs:
                body.node.append(helper.make_node("Identity", [outside], [name]))
            rename([node for node in body.node if name not in node.output], {name: outside})
            keep_only(body.value_info, lambda info: info.name != name or info.name in outputs)  # noqa: B023 -- at once

    def around(self, number: int) -> Iterator[onnx.ModelProto]:
        """The models in which the readers of a node read one of its inputs, for each that agrees in type.

        An output of the body becomes an Identity of that input, unless it can take its place: where the input is
        computed in the body and is no output itself.
        """
        from onnx import helper

        output = self._only_output(number)
        for through in dict.fromkeys(self._body.node[number].input):
            if output is None or not through or not self._agree(through, output):
                continue
            made = copied(self.model)
            body = graph_at(made, self.place)
            del body.node[number]
            given = {info.name for info in body.output}
            if output in given and through not in given and any(through in other.output for other in body.node):
                rename(body.node, {through: output})
            else:
                rename(body.node, {output: through})
                if output in given:
                    body.node.append(helper.make_node("Identity", [through], [output]))
            drop_dead_nodes(body, is_trivial)
            yield made

    def _only_output(self, number: int) -> str | None:
        """The output of a node that is read, if it is the only one and may be changed."""
        outputs = [name for name in self._body.node[number].output if name in read_in(self._body)]
        return outputs[0] if len(outputs) == 1 and outputs[0] != self._goes_on else None

    def as_constant(self, number: int) -> onnx.ModelProto | None:
        """The model with a constant in place of a node; None where its type is no tensor's of known shape."""
        output = self._only_output(number)
        constant = None if output is None else ones(output, self._types.get(output))
        if constant is None:
            return None
        made = copied(self.model)
        body = graph_at(made, self.place)
        del body.node[number]
        body.initializer.append(constant)
        drop_dead_nodes(body, is_trivial)
        return made


def ones(name: str, kind: onnx.TypeProto | None) -> onnx.TensorProto | None:
    """A tensor of ones of a type whose shape is known and small; None for other types."""
    import numpy as np
    from onnx import helper, numpy_helper

    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.tensor_type.shape.dim]
    elem = kind.tensor_type.elem_type
    if any(size < 0 for size in dims) or np.prod(dims) > _MOST_ELEMENTS or elem not in {1, 6, 7, 9, 10, 11}:
        return None
    return numpy_helper.from_array(np.ones(dims, helper.tensor_dtype_to_np_dtype(elem)), name)
