"""Passes that replace calls and control flow by the nodes that they run, and then search among these nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from biopsy import events
from biopsy.model import walk
from biopsy.model.index import index_bytes
from biopsy.model.load import parse
from biopsy.model.slice import candidate_bytes
from biopsy.model.walk import unbounded
from biopsy.recording.reference_run import Recording
from biopsy.recording.types import CutTypes
from biopsy.reduction.passes.common import (
    Change,
    ChangeSearch,
    PassContext,
    Place,
    body_of,
    copied,
    described,
    drop_dead_nodes,
    drop_what_died,
    every_node,
    fresh,
    graph_at,
    is_control_flow,
    leave_out,
    names_in,
    opsets_of,
    refresh_types_behind,
    rename,
)
from biopsy.reduction.passes.nodes import bypass, forms, linear, sets
from biopsy.reduction.problem import Candidate, Problem, Proposal
from biopsy.search.drive import Round, Search, nest
from biopsy.slow_imports import onnx

_MOST_NODES = 10_000  # more nodes are not simpler than a call


def inline(model: onnx.ModelProto) -> ChangeSearch:
    """Inline all called functions, or by halves as many as possible; then search among their nodes."""

    def without(gone: Sequence[tuple[str, str]]) -> Change:
        return Change(inlined(model, gone), f"the nodes of {', '.join(name for _, name in gone)} in place of calls")

    gone = yield from leave_out(called_functions(model), without)
    if gone:
        yield from nested_search(without(gone).model, keep_values=True)


def called_functions(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(domain, name) of the local functions that are called and can be inlined, in the order of the model."""
    able = walk.called(model)
    too_large = unbounded(model.functions, _MOST_NODES)
    if too_large:
        # Functions that it calls are not inlined either: it would become even larger.
        callers = type(model)(functions=model.functions)
        for function in model.functions:
            if walk.function_key(function) in too_large:
                callers.graph.node.extend(function.node)
        able = able - {*too_large, *walk.called(callers)}
    functions = [function for function in model.functions if walk.function_key(function) in able]
    return list(dict.fromkeys((function.domain, function.name) for function in functions))


def not_inlined(model: onnx.ModelProto) -> Sequence[str]:
    """Lines on the called functions that are too large to inline."""
    called, reasons = walk.called(model), dict[str, list[str]]()
    for key, why in unbounded(model.functions, _MOST_NODES).items():
        if key in called:
            reasons.setdefault(why, []).append(key[1])
    return [f"inline     not done for {', '.join(sorted(names))}: {why}" for why, names in reasons.items()]


def inlined(model: onnx.ModelProto, functions: Iterable[tuple[str, str]]) -> onnx.ModelProto:
    """A copy with the calls of these functions replaced by their nodes; an unchanged copy if onnx fails."""
    from onnx import inliner

    try:
        return inliner.inline_selected_functions(copied(model), list(functions), exclude=False)
    except Exception:  # onnx raises all kinds of errors here
        return copied(model)


def hoist(model: onnx.ModelProto) -> ChangeSearch:
    """Replace one control-flow node or call after the other by its nodes, outer ones first; search again after each."""
    failed: set[bytes] = set()  # nodes tried in vain
    while True:
        for place, number, node in every_node(model):
            serialized = node.SerializeToString(deterministic=True)
            if serialized in failed:
                continue
            changes = list(_hoisted(model, place, number, node))
            answer = (yield changes) if changes else None
            if answer is not None:
                model = yield from nested_search(answer)
                break
            failed.add(serialized)
        else:
            return


def _hoisted(model: onnx.ModelProto, place: Place, number: int, node: onnx.NodeProto) -> Iterator[Change]:
    """The model with the nodes of each body, or of the function, in place of a node."""
    read = {name for other in graph_at(model, place).node for name in walk.reads(other)}
    given_out = {info.name for info in graph_at(model, place).output}
    unread = [name for name in node.output if name and name not in read | given_out]
    # What computes an output that nobody reads would go with the node, so that output is given out as well.
    for more in ([], unread) if unread and not place else ([],):
        for body, unfold in _UNFOLDINGS[node.op_type].items() if is_control_flow(node) else ():
            unfolded = copied(model)
            for name in more:
                unfolded.graph.output.add(name=name)
            outputs = list(graph_at(unfolded, place).node[number].output)
            if unfold(unfolded, graph_at(unfolded, place), number):
                refresh_types_behind(unfolded, place, outputs)
                drop_what_died(unfolded, model)
                if not _untyped(unfolded) - _untyped(model):  # a body need not tell the types of its outputs
                    runs_if = dict.fromkeys(
                        filter(None, node.input[: _CONDITIONS[node.op_type]]), body != "else_branch"
                    )
                    yield Change(unfolded, f"{body} in place of {described(node)}", runs_if)
    if not is_control_flow(node) and (node.domain, node.op_type) in called_functions(model):
        yield Change(inlined(model, [(node.domain, node.op_type)]), f"its nodes in place of calls of {node.op_type}")


def _untyped(model: onnx.ModelProto) -> set[str]:
    """The outputs of a model that onnx's checker refuses, because they have no type or no rank."""
    kinds = {info.name: info.type for info in model.graph.output}
    return {
        name
        for name, kind in kinds.items()
        if not (kind.tensor_type.HasField("shape") if kind.HasField("tensor_type") else kind.WhichOneof("value"))
    }


Unfold: TypeAlias = "Callable[[onnx.ModelProto, onnx.GraphProto, int], bool]"
"""Replaces the node with this number in a graph of the model by the nodes of its body; False if it cannot.

Names stay unique, and captures stay right.
"""

_TRIP = "trip"
_GOES_ON = "goes_on"


def unfolded_if(attribute: str, model: onnx.ModelProto, graph: onnx.GraphProto, number: int) -> bool:
    """Replace an If by the branch in this attribute."""
    outputs, body = list(graph.node[number].output), body_of(graph.node[number], attribute)
    if body is None or len(body.output) < len(outputs):
        return False
    _put(model, graph, number, body, fed={}, outputs=outputs)
    return True


def unfolded_loop(model: onnx.ModelProto, graph: onnx.GraphProto, number: int) -> bool:
    """Replace a Loop by its first trip, with the initial loop-carried values."""
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
    """Replace a Scan by its first step, with the first slices of the scanned tensors."""
    node = graph.node[number]
    body = body_of(node, "body")
    attributes = {attribute.name: attribute for attribute in node.attribute}
    scanned = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
    states = len(node.input) - scanned
    fits = body is not None and len(body.input) == len(node.input) and len(body.output) >= len(node.output)
    if body is None or not fits or states < 0 or "" in node.input or opsets_of(model).get("", 1) < 9:
        return False
    taken = names_in(model)
    first = fresh("first", taken)
    _add_scalar(model, graph, first, 7, None)
    in_axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * scanned
    given = "scan_output_axes" in attributes
    out_axes = list(attributes["scan_output_axes"].ints) if given else [0] * len(node.output)
    slices = [fresh(f"{name}_first", taken) for name in node.input[states:]]
    gathers = [
        onnx.helper.make_node("Gather", [name, first], [output], name=fresh(f"{output}_slice", taken), axis=axis)
        for name, output, axis in zip(node.input[states:], slices, in_axes, strict=False)
    ]
    fed = dict(zip((info.name for info in body.input), (*node.input[:states], *slices), strict=True))
    stacked = {position: out_axes[position - states] for position in range(states, len(node.output))}
    _put(model, graph, number, body, fed=fed, outputs=list(node.output), stacked=stacked, before=gathers)
    return True


_UNFOLDINGS: dict[str, dict[str, Unfold]] = {
    "If": {branch: partial(unfolded_if, branch) for branch in ("then_branch", "else_branch")},
    "Loop": {"one trip": unfolded_loop},
    "Scan": {"one step": unfolded_scan},
}
"""Control-flow operator -> each way to replace it, with a description of the nodes that replace it."""

_CONDITIONS = {"If": 1, "Loop": 2, "Scan": 0}
"""Control-flow operator -> how many of its first inputs decide whether a body runs: it does if they are true or greater
than 0; the else branch if not."""


def _add_scalar(
    model: onnx.ModelProto, graph: onnx.GraphProto, name: str, elem: int, like: onnx.ValueInfoProto | None
) -> None:
    """Add an initializer of one element, 0 or True, with the shape () or (1,) of the body's input ``like``."""
    dims = [1] * len(like.type.tensor_type.shape.dim) if like is not None else []
    graph.initializer.append(onnx.helper.make_tensor(name, elem, dims, [1 if elem == 9 else 0]))
    _list_as_input(model, graph, name)


def _list_as_input(model: onnx.ModelProto, graph: onnx.GraphProto, name: str) -> None:
    """Add an initializer to the inputs, as required before IR version 4."""
    if graph is model.graph and 0 < model.ir_version < 4:
        weight = next(weight for weight in graph.initializer if weight.name == name)
        graph.input.append(onnx.helper.make_tensor_value_info(name, weight.data_type, list(weight.dims)))


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
    """Put the nodes ``before`` and those of a body in the place of a node.

    ``fed`` has the outer names of the body's inputs, ``outputs`` those of its outputs ("" for an unused one), and
    ``stacked`` the axis along which an output of a loop's trips is stacked, by its position.
    """
    inner = type(body)()
    inner.CopyFrom(body)
    del graph.node[number]
    taken = names_in(model).union(*(node.output for node in before), *map(walk.defined, walk.graphs_within(inner.node)))
    others = list(graph.node)
    after = _rename_body(model, graph, inner, fed=fed, outputs=outputs, stacked=stacked or {}, taken=taken)
    for node in inner.node:
        node.name = fresh(node.name, taken) if node.name else ""
    nodes = [*others[:number], *before, *inner.node, *after, *others[number:]]
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(inner.initializer)
    graph.sparse_initializer.extend(inner.sparse_initializer)
    graph.value_info.extend(inner.value_info)
    for weight in inner.initializer:
        _list_as_input(model, graph, weight.name)
    new = {name for node in (*before, *inner.node, *after) for name in node.output}
    drop_dead_nodes(graph, lambda node: bool(new.intersection(node.output)))


def _rename_body(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    inner: onnx.GraphProto,
    *,
    fed: dict[str, str],
    outputs: Sequence[str],
    stacked: dict[int, int],
    taken: set[str],
) -> list[onnx.NodeProto]:
    """Give a body names that are free outside; returns the nodes that compute outer outputs from those of the body."""
    defined = walk.defined(inner) - set(fed)
    written = {name for node in inner.node for name in node.output}
    read = {name for node in graph.node for name in walk.reads(node)}
    names = dict(fed)
    after: list[tuple[str, str, int | None]] = []
    for position, (info, outside) in enumerate(zip(inner.output, outputs, strict=False)):
        axis = stacked.get(position)
        if axis is not None and outside not in read:  # the output of the model becomes the slice, with its type
            axis = None
            for output in graph.output:
                if output.name == outside:
                    output.ClearField("type")  # a body need not say it: then it is inferred
                    if info.type.WhichOneof("value"):
                        output.type.CopyFrom(info.type)
        if outside and axis is None and info.name in written and info.name not in names:
            names[info.name] = outside
        elif outside:
            after.append((info.name, outside, axis))
    for name in sorted(defined - set(names)):
        names[name] = fresh(name, taken)
    rename(inner.node, names)
    sparse = (weight.values for weight in inner.sparse_initializer)
    named: list[onnx.TensorProto | onnx.ValueInfoProto] = [*inner.initializer, *sparse, *inner.value_info]
    for tensor in named:
        tensor.name = names.get(tensor.name, tensor.name)
    return [_output_node(model, graph, names.get(source, source), outside, axis) for source, outside, axis in after]


def _output_node(
    model: onnx.ModelProto, graph: onnx.GraphProto, source: str, outside: str, axis: int | None
) -> onnx.NodeProto:
    """A node that makes the tensor ``outside`` of ``source``, with an axis as the stacked result of one trip."""
    if axis is None:
        return onnx.helper.make_node("Identity", [source], [outside])
    if opsets_of(model).get("", 1) < 13:
        return onnx.helper.make_node("Unsqueeze", [source], [outside], axes=[axis])
    name = fresh("axes", names_in(model))
    graph.initializer.append(onnx.helper.make_tensor(name, 7, [1], [axis]))
    return onnx.helper.make_node("Unsqueeze", [source, name], [outside])


def nested_search(
    model: onnx.ModelProto, *, keep_values: bool = False
) -> Search[Change, onnx.ModelProto, onnx.ModelProto]:
    """Run the passes over nodes on a changed model until no single node can be removed; returns the smallest model.

    New tensors have no recorded values, so a cut is fed unless it is a constant. With ``keep_values``, no node is
    bypassed.
    """
    index = index_bytes(model.SerializeToString(deterministic=True))
    recording = Recording(index, tuple, Path(), events.ignore)
    problem = Problem(index, CutTypes(index, recording), recording)
    context = PassContext(problem, may_change_values=lambda: not keep_values)
    target, before = problem.original, None

    def answer(proposals: Round[Proposal]) -> Search[Change, onnx.ModelProto, Candidate | None]:
        """Propose the candidates of a round as models."""
        nonlocal target
        for proposal in proposals:
            candidate = problem.closed(proposal.candidate)
            if candidate == target:
                return target
            if candidate is not None and candidate.size < target.size:
                reply = yield [Change(_model_of(problem, candidate), proposal.description)]
                if reply is not None:
                    target = candidate
                    return target
        return None

    while target != before and target.size > 1:
        before = target
        for search in (sets, bypass, linear, forms):
            yield from nest(search(context, target), answer)
    return model if target == problem.original else _model_of(problem, target)


def _model_of(problem: Problem, candidate: Candidate) -> onnx.ModelProto:
    return parse(candidate_bytes(problem.subset(candidate), problem.boundary(candidate)), None)
