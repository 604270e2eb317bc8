"""The pass over bodies of If, Loop and Scan: fewer outputs, and fewer nodes inside."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

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
    leave_out,
    names_in,
    opsets_of,
    places,
    read_in,
    rename,
    types_in,
)
from biopsy.search.subset import minimize_subset
from biopsy.slow_imports import np, onnx

Step: TypeAlias = "Generator[Iterable[Change], onnx.ModelProto | None, onnx.ModelProto]"


def bodies(model: onnx.ModelProto) -> ChangeSearch:
    """Remove unread outputs with their loop-carried values; then remove nodes in each body, inner bodies first.

    At the end, remove outer nodes that are no longer used.
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
            model = yield from _bypass_nodes(BodyNodes(model, place))
    without_unused = copied(model)
    drop_what_died(without_unused, before)
    if without_unused != model:
        yield [Change(without_unused, "without the nodes that only served bodies")]


def _bypass_nodes(body: BodyNodes) -> Step:
    """Bypass each node of a body, or replace it by a constant, one at a time, from its end."""
    for position in reversed(range(len(body.nodes))):
        node = body.nodes[position]
        name = f"{described(graph_at(body.model, body.place).node[node])} in {body.name}"
        changes = [Change(bypassed, f"around {name}") for bypassed in body.around(node)]
        constant = body.as_constant(node)
        if constant is not None:
            changes.append(Change(constant, f"a constant in place of {name}"))
        answer = (yield changes) if changes else None
        if answer is not None:
            body = BodyNodes(answer, body.place)  # the nodes before this one keep their order
    return body.model


@dataclass(frozen=True)
class Output:
    """The output of a control-flow node at a position."""

    place: Place
    node: int
    position: int


def unread_outputs(model: onnx.ModelProto) -> list[Output]:
    """Outputs that can be removed: they are not read, nor are their loop-carried values inside the body."""
    outputs = []
    for place, number, node in every_node(model):
        if is_control_flow(node) and _is_well_formed(node):
            read = read_in(graph_at(model, place))
            unread = [
                Output(place, number, position)
                for position, name in enumerate(node.output)
                if name not in read and _is_free(node, position)
            ]
            outputs += unread if len(unread) < len(node.output) else unread[1:]
    return outputs


def without_outputs(model: onnx.ModelProto, gone: Iterable[Output]) -> onnx.ModelProto:
    """The model without these outputs and the nodes that only they needed."""
    reduced = copied(model)
    for output in sorted(gone, key=lambda output: (output.place, output.node, output.position), reverse=True):
        node = graph_at(reduced, output.place).node[output.node]
        _remove(node, output.position)
        for body in walk.bodies(node):
            drop_dead_nodes(body)
    drop_what_died(reduced, model)
    return reduced


def _is_well_formed(node: onnx.NodeProto) -> bool:
    """Whether the node and its bodies have matching numbers of inputs and outputs."""
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
    """The number of loop-carried values."""
    if node.op_type == "Loop":
        return max(len(node.input) - 2, 0)
    if node.op_type == "Scan":
        scanned = next((entry.i for entry in node.attribute if entry.name == "num_scan_inputs"), 0)
        return max(len(node.input) - scanned, 0)
    return 0


def _is_free(node: onnx.NodeProto, position: int) -> bool:
    """Whether an output is not a loop-carried value, or one that only its own computation reads."""
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


_MOST_ELEMENTS = 1 << 16

_IDENTITY_OF_ANYTHING = 16
"""The first opset in which Identity takes sequences and optionals."""


class BodyNodes:
    """The nodes of the body at a place of a model. Methods return new models and leave this one unchanged."""

    def __init__(self, model: onnx.ModelProto, place: Place) -> None:
        self.model = model
        self.place = place
        self._body = graph_at(model, place)
        *outer, (number, position, _) = place
        self._node = graph_at(model, tuple(outer)).node[number]
        self.name = f"the {self._node.attribute[position].name} of {self._node.name or self._node.op_type}"

    @cached_property
    def nodes(self) -> list[int]:
        """The numbers of the nodes that are worth removing: all but Identity and Constant."""
        return [number for number, node in enumerate(self._body.node) if not is_trivial(node)]

    @cached_property
    def _types(self) -> dict[str, onnx.TypeProto]:
        """The types of all tensors that can be read in the body, also those of the graphs around it."""
        types = types_in(inferred(self.model).graph)
        for depth, (number, _, _) in enumerate(self.place):
            node = graph_at(self.model, self.place[:depth]).node[number]
            body = graph_at(self.model, self.place[: depth + 1])
            # A body is inferred as a model of its own. Loop-carried values get the types from before the first trip;
            # onnx drops their shapes, since they may change.
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
        """The condition of a Loop without a trip count; if it is changed, the loop may never end."""
        counts = self._node.op_type != "Loop" or (self._node.input and self._node.input[0])
        return None if counts or not self._body.output else self._body.output[0].name

    def proposed(self, kept: Sequence[int]) -> Change:
        """The proposal to keep only these ``nodes``."""
        return Change(self.with_only(kept), f"{len(kept)} of {len(self.nodes)} nodes of {self.name}")

    def with_only(self, kept: Iterable[int]) -> onnx.ModelProto:
        """The model with only these ``nodes``; outputs of the others become new inputs of the model.

        An output of the body whose node is removed becomes an unread tensor of the same type, if there is one, so that
        the kept nodes still matter. A node stays if the type of an output is unknown.
        """
        gone = self._removable(set(self.nodes).difference(kept))
        reduced = copied(self.model)
        if not gone:
            return reduced
        body = graph_at(reduced, self.place)
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
        self._feed(reduced, body, sorted(lost & read_in(body)))
        return reduced

    def _removable(self, nodes: set[int]) -> set[int]:
        """Those of the nodes that can be removed: each of their outputs that is still read can be an input."""
        gone = set(nodes)
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
        """Whether a tensor can be an input: its type is known, and Identity takes it."""
        kind = self._types.get(name)
        if kind is None or kind.HasField("tensor_type"):
            return kind is not None and kind.tensor_type.elem_type > 0 and kind.tensor_type.HasField("shape")
        return opsets_of(self.model).get("", 1) >= _IDENTITY_OF_ANYTHING

    def _agree(self, first: str, second: str) -> bool:
        """Whether two tensors have the same known element type, and the same shape if both are known."""
        kind, other = self._types.get(first), self._types.get(second)
        if kind is None or other is None or kind.WhichOneof("value") != "tensor_type":
            return False
        if not kind.tensor_type.HasField("shape") or not other.tensor_type.HasField("shape"):
            return bool(kind.tensor_type.elem_type == other.tensor_type.elem_type)
        return kind == other

    def _feed(self, model: onnx.ModelProto, body: onnx.GraphProto, names: Iterable[str]) -> None:
        """Add inputs of the model for tensors of a body; an output of the body becomes an Identity of its input."""
        taken = names_in(model)
        elsewhere = [name for graph in walk.graphs(model) for name in walk.defined(graph)]
        outputs = {info.name for info in body.output}
        for name in names:
            is_free = name not in elsewhere and name not in outputs
            outside = name if is_free else fresh(f"{name}_in", taken)
            model.graph.input.add(name=outside, type=self._types[name])
            if name in outputs:
                body.node.append(onnx.helper.make_node("Identity", [outside], [name]))
            rename([node for node in body.node if name not in node.output], {name: outside})
            walk.keep(body.value_info, lambda info: info.name != name or info.name in outputs)  # noqa: B023 -- at once

    def around(self, number: int) -> Iterator[onnx.ModelProto]:
        """The models with a node bypassed, one for each of its inputs of the same type, which is read instead.

        If its output is one of the body, the input takes its name if it is computed in the body and is not an output
        itself; otherwise the output becomes an Identity of it.
        """
        output = self._only_output(number)
        for through in dict.fromkeys(self._body.node[number].input):
            if output is None or not through or not self._agree(through, output):
                continue
            bypassed = copied(self.model)
            body = graph_at(bypassed, self.place)
            del body.node[number]
            outputs = {info.name for info in body.output}
            if output in outputs and through not in outputs and any(through in other.output for other in body.node):
                rename(body.node, {through: output})
            else:
                rename(body.node, {output: through})
                if output in outputs:
                    body.node.append(onnx.helper.make_node("Identity", [through], [output]))
            drop_dead_nodes(body, is_trivial)
            yield bypassed

    def _only_output(self, number: int) -> str | None:
        """The only output of a node that is read; None if there are several or it may not be changed."""
        outputs = [name for name in self._body.node[number].output if name in read_in(self._body)]
        return outputs[0] if len(outputs) == 1 and outputs[0] != self._goes_on else None

    def as_constant(self, number: int) -> onnx.ModelProto | None:
        """The model with ones in place of a node; None if its output is not a small tensor of known shape."""
        output = self._only_output(number)
        constant = None if output is None else ones(output, self._types.get(output))
        if constant is None:
            return None
        replaced = copied(self.model)
        body = graph_at(replaced, self.place)
        del body.node[number]
        body.initializer.append(constant)
        drop_dead_nodes(body, is_trivial)
        return replaced


def ones(name: str, kind: onnx.TypeProto | None) -> onnx.TensorProto | None:
    """A tensor of ones of this type; None if its shape is unknown or large, or its element type is not supported."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.tensor_type.shape.dim]
    elem = kind.tensor_type.elem_type
    if any(size < 0 for size in dims) or np.prod(dims) > _MOST_ELEMENTS or elem not in {1, 6, 7, 9, 10, 11}:
        return None
    return onnx.numpy_helper.from_array(np.ones(dims, onnx.helper.tensor_dtype_to_np_dtype(elem)), name)
