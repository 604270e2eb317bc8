"""What passes over the model share: copies, names that are free, and the places of graphs inside nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from biopsy.model import onnx_native, walk
from biopsy.model.infer import without_weights

if TYPE_CHECKING:
    import onnx

Message = TypeVar("Message")

Place: TypeAlias = tuple[tuple[int, int, int], ...]
"""Where a graph stands: () is the model's own; each step is (node, attribute, number within the attribute)."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy, to be changed."""
    made = type(model)()
    made.CopyFrom(model)
    return made


def keep_only(repeated: Any, kept: Callable[[Any], bool]) -> bool:
    """Remove every element of a repeated field that is not ``kept``; True if any was removed."""
    gone = [number for number, element in enumerate(repeated) if not kept(element)]
    for number in reversed(gone):
        del repeated[number]
    return bool(gone)


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether a node is If, Loop or Scan."""
    return node.op_type in CONTROL_FLOW and walk.operator(node)[0] == ""


def places(model: onnx.ModelProto) -> list[Place]:
    """The model's graph and every body inside it, outer ones first, in the order of the nodes."""
    found: list[Place] = []
    _collect(model.graph, (), found)
    return found


def _collect(graph: onnx.GraphProto, place: Place, found: list[Place]) -> None:
    found.append(place)
    for number, node in enumerate(graph.node):
        for position, attribute in enumerate(node.attribute):
            for part, body in enumerate(_graphs_of(attribute)):
                _collect(body, (*place, (number, position, part)), found)


def _graphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def graph_at(model: onnx.ModelProto, place: Place) -> onnx.GraphProto:
    """The graph at a place."""
    graph = model.graph
    for number, position, part in place:
        graph = _graphs_of(graph.node[number].attribute[position])[part]
    return graph


def body_of(node: onnx.NodeProto, attribute: str) -> onnx.GraphProto | None:
    """The body in the attribute of that name; None if there is none."""
    return next((found.g for found in node.attribute if found.name == attribute and found.HasField("g")), None)


def names_in(model: onnx.ModelProto) -> set[str]:
    """The names of all tensors and nodes of the model's graph and its bodies."""
    found = set()
    for graph in walk.graphs(model):
        found |= walk.defined(graph)
        found.update(output.name for output in graph.output)
        found.update(name for node in graph.node for name in (node.name, *node.input))
    return found


def fresh(name: str, taken: set[str]) -> str:
    """A name like ``name`` that is not ``taken``; it is from then on."""
    made, number = name, 1
    while made in taken or not made:
        made, number = f"{name}_{number}", number + 1
    taken.add(made)
    return made


def rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Rename the tensors that nodes read and write, also where their bodies take them from outside."""
    for node in nodes:
        for field in (node.input, node.output):
            for number, name in enumerate(field):
                if name in names:
                    field[number] = names[name]
        for body in walk.bodies(node):
            own = walk.defined(body)
            inner = {name: other for name, other in names.items() if name not in own}
            if inner:
                rename(body.node, inner)
                for output in body.output:
                    output.name = inner.get(output.name, output.name)


def read_in(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a graph's nodes read or that it gives out."""
    found = {output.name for output in graph.output}
    for node in graph.node:
        found |= walk.reads(node)
    return found


def drop_dead_nodes(graph: onnx.GraphProto, may_go: Callable[[onnx.NodeProto], bool] = lambda node: True) -> None:
    """Remove nodes of a graph of whose outputs none is read, and what only served them."""
    while _drop_unread(graph, read_in(graph), may_go):
        continue


def _drop_unread(graph: onnx.GraphProto, read: set[str], may_go: Callable[[onnx.NodeProto], bool]) -> bool:
    return keep_only(graph.node, lambda node: bool(read.intersection(node.output)) or not may_go(node))


def drop_what_died(made: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Remove nodes of which nothing is read any more, of the model's graph and of bodies, and what only served them.

    Nodes that were read by nothing ``before`` stay: whether they can go is another question.
    """
    unread = {name for graph in walk.graphs(before) for node in _unread_nodes(graph) for name in node.output}
    for graph in reversed([made.graph, *walk.graphs_within(made.graph.node)]):
        drop_dead_nodes(graph, lambda node: any(node.output) and unread.isdisjoint(node.output))


def _unread_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    read = read_in(graph)
    return [node for node in graph.node if read.isdisjoint(node.output)]


def is_trivial(node: onnx.NodeProto) -> bool:
    """Whether a node only stands for a tensor."""
    return node.op_type in {"Identity", "Constant"} and walk.operator(node)[0] == ""


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, its nodes and bodies at the same places, with every type that can be told; large values are missing.

    Never raises: what cannot be inferred is missing.
    """
    return onnx_native.inferred(without_weights(model)).model


def types_in(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The types that a graph itself tells of its tensors."""
    from onnx import helper

    found = {
        weight.name: helper.make_tensor_type_proto(weight.data_type, list(weight.dims)) for weight in graph.initializer
    }
    for info in (*graph.value_info, *graph.output, *graph.input):
        if info.type.WhichOneof("value"):
            found[info.name] = info.type
    return found


def every_node(model: onnx.ModelProto) -> Iterator[tuple[Place, int, onnx.NodeProto]]:
    """Every node of the model's graph and of its bodies, with its place; those of local functions not."""
    for place in places(model):
        for number, node in enumerate(graph_at(model, place).node):
            yield place, number, node


def described(node: onnx.NodeProto) -> str:
    """A node in words: its operator, and its name if it has one."""
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
