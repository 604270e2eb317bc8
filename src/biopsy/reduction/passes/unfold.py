"""Replacing a control-flow node by the nodes of its body: names kept unique, captures kept right.

Each function changes the model that it is given and says whether it could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import walk
from biopsy.reduction.passes.editing import body_of, drop_dead_nodes, fresh, names_in, rename
from biopsy.reduction.passes.schemas import opsets_of

if TYPE_CHECKING:
    import onnx

Unfold: TypeAlias = "Callable[[onnx.ModelProto, onnx.GraphProto, int], bool]"
"""Unfolds the node with that number of a graph of the model."""

_TRIP = "trip"
_GOES_ON = "goes_on"


def unfolded_if(attribute: str) -> Unfold:
    """Replaces an If by the branch in one of its attributes."""

    def unfold(model: onnx.ModelProto, graph: onnx.GraphProto, number: int) -> bool:
        body = body_of(graph.node[number], attribute)
        if body is None or len(body.output) < len(graph.node[number].output):
            return False
        _put(model, graph, number, body, fed={}, outputs=list(graph.node[number].output))
        return True

    return unfold


def unfolded_loop(model: onnx.ModelProto, graph: onnx.GraphProto, number: int) -> bool:
    """Replaces a Loop by its first trip: the loop-carried values are the initial ones."""
    node = graph.node[number]
    body = body_of(node, "body")
    if body is None or len(body.input) < 2 or len(body.input) != max(len(node.input), 2) or not body.output:
        return False
    initial = list(node.input[2:])
    if "" in initial or len(body.output) < 1 + len(node.output):
        return False
    taken = names_in(model)
    trip, goes_on = fresh(_TRIP, taken), fresh(_GOES_ON, taken)
    _add_scalar(model, graph, trip, 7, body.input[0])
    _add_scalar(model, graph, goes_on, 9, body.input[1])
    fed = dict(zip((info.name for info in body.input), (trip, goes_on, *initial), strict=True))
    stacked = dict.fromkeys(range(1 + len(initial), 1 + len(node.output)), 0)
    _put(model, graph, number, body, fed=fed, outputs=["", *node.output], stacked=stacked)
    return True


def unfolded_scan(model: onnx.ModelProto, graph: onnx.GraphProto, number: int) -> bool:
    """Replaces a Scan by its first step: what it scans is its first slice."""
    from onnx import helper

    node = graph.node[number]
    body = body_of(node, "body")
    given = {attribute.name: attribute for attribute in node.attribute}
    scanned = given["num_scan_inputs"].i if "num_scan_inputs" in given else 0
    states = len(node.input) - scanned
    fits = body is not None and len(body.input) == len(node.input) and len(body.output) >= len(node.output)
    if body is None or not fits or states < 0 or "" in node.input or opsets_of(model).get("", 1) < 9:
        return False
    taken = names_in(model)
    first = fresh("first", taken)
    _add_scalar(model, graph, first, 7, None)
    in_axes = list(given["scan_input_axes"].ints) if "scan_input_axes" in given else [0] * scanned
    out_axes = list(given["scan_output_axes"].ints) if "scan_output_axes" in given else [0] * len(node.output)
    slices = [fresh(f"{name}_first", taken) for name in node.input[states:]]
    gathers = [
        helper.make_node("Gather", [name, first], [made], name=fresh(f"{made}_slice", taken), axis=axis)
        for name, made, axis in zip(node.input[states:], slices, in_axes, strict=False)
    ]
    fed = dict(zip((info.name for info in body.input), (*node.input[:states], *slices), strict=True))
    stacked = {position: out_axes[position - states] for position in range(states, len(node.output))}
    _put(model, graph, number, body, fed=fed, outputs=list(node.output), stacked=stacked, before=gathers)
    return True


def _add_scalar(
    model: onnx.ModelProto, graph: onnx.GraphProto, name: str, elem: int, like: onnx.ValueInfoProto | None
) -> None:
    """An initializer of one element, 0 or True, of the shape that a body says it takes: () or (1,)."""
    from onnx import helper

    dims = [1] * len(like.type.tensor_type.shape.dim) if like is not None else []
    graph.initializer.append(helper.make_tensor(name, elem, dims, [1 if elem == 9 else 0]))
    _list_as_input(model, graph, name)


def _list_as_input(model: onnx.ModelProto, graph: onnx.GraphProto, name: str) -> None:
    """IR 3 wants every initializer among the inputs."""
    from onnx import helper

    if graph is model.graph and 0 < model.ir_version < 4:
        weight = next(weight for weight in graph.initializer if weight.name == name)
        graph.input.append(helper.make_tensor_value_info(name, weight.data_type, list(weight.dims)))


def _put(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    number: int,
    body: onnx.GraphProto,
    *,
    fed: dict[str, str],
    outputs: Sequence[str],
    stacked: dict[int, int] | None = None,
    before: Sequence[onnx.NodeProto] = (),
) -> None:
    """Put the body's nodes in the place of a node.

    ``fed`` are the names that its inputs have outside; ``outputs`` those of its outputs, "" for one that is not
    wanted; ``stacked`` the axis that each output of a loop's trips gets, by its position.
    """
    inner = type(body)()
    inner.CopyFrom(body)
    del graph.node[number]
    taken = names_in(model).union(*(node.output for node in before), *map(walk.defined, walk.graphs_within(inner.node)))
    rest = list(graph.node)
    after = _named_anew(model, graph, inner, fed=fed, outputs=outputs, stacked=stacked or {}, taken=taken)
    for node in inner.node:
        node.name = fresh(node.name, taken) if node.name else ""
    kept = [*rest[:number], *before, *inner.node, *after, *rest[number:]]
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    _take_weights(model, graph, inner)
    ours = {name for node in (*before, *inner.node, *after) for name in node.output}
    drop_dead_nodes(graph, lambda node: bool(ours.intersection(node.output)))


def _named_anew(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    inner: onnx.GraphProto,
    *,
    fed: dict[str, str],
    outputs: Sequence[str],
    stacked: dict[int, int],
    taken: set[str],
) -> list[onnx.NodeProto]:
    """Rename what a body holds so that it fits outside; returns nodes that give its outputs their names."""
    own = walk.defined(inner) - set(fed)
    written = {name for node in inner.node for name in node.output}
    names = dict(fed)
    after: list[tuple[str, str, int | None]] = []
    for position, (info, outside) in enumerate(zip(inner.output, outputs, strict=False)):
        axis = stacked.get(position)
        plain = axis is None or _is_only_given_out(graph, outside, info)
        if outside and plain and info.name in written and info.name not in names:
            names[info.name] = outside
        elif outside:
            after.append((info.name, outside, None if plain else axis))
    for name in sorted(own - set(names)):
        names[name] = fresh(name, taken)
    rename(inner.node, names)
    for weight in inner.initializer:
        weight.name = names.get(weight.name, weight.name)
    for sparse in inner.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for info in inner.value_info:
        info.name = names.get(info.name, info.name)
    return [
        node
        for source, outside, axis in after
        for node in _giving(model, graph, names.get(source, source), outside, axis)
    ]


def _is_only_given_out(graph: onnx.GraphProto, name: str, info: onnx.ValueInfoProto) -> bool:
    """Whether no node reads what a loop stacked; then the model gives out the slice as it is, with its own type."""
    if any(name in walk.reads(node) for node in graph.node):
        return False
    for output in graph.output:
        if output.name == name:
            output.type.CopyFrom(info.type)
    return True


def _giving(
    model: onnx.ModelProto, graph: onnx.GraphProto, source: str, outside: str, axis: int | None
) -> list[onnx.NodeProto]:
    """Nodes that give a tensor another name; with an axis they stack it along that axis, as one trip does."""
    from onnx import helper

    if axis is None:
        return [helper.make_node("Identity", [source], [outside])]
    if opsets_of(model).get("", 1) < 13:
        return [helper.make_node("Unsqueeze", [source], [outside], axes=[axis])]
    name = fresh("axes", names_in(model))
    graph.initializer.append(helper.make_tensor(name, 7, [1], [axis]))
    return [helper.make_node("Unsqueeze", [source, name], [outside])]


def _take_weights(model: onnx.ModelProto, graph: onnx.GraphProto, inner: onnx.GraphProto) -> None:
    graph.initializer.extend(inner.initializer)
    graph.sparse_initializer.extend(inner.sparse_initializer)
    graph.value_info.extend(inner.value_info)
    for weight in inner.initializer:
        _list_as_input(model, graph, weight.name)
