"""The contracts of passes over nodes and over the model, and functions that passes over the model share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Literal, TypeAlias, TypeVar

from biopsy.model import onnx_native, walk
from biopsy.model.infer import without_weights
from biopsy.reduction.problem import Candidate, NodeSearch, Problem
from biopsy.search.drive import Item, Search
from biopsy.search.subset import minimize_subset
from biopsy.slow_imports import onnx


class NotFoundOutError(Exception):
    """A pass needs a fact that would cost checks and has not been found out yet."""


class PassContext:
    """The problem, and further facts that passes may use.

    ``may_change_values`` and ``suspects`` may cost checks, so they are found out once, when a pass first needs them.
    ``ranking`` are sets of nodes that a report names, the worst first. ``known_needed`` returns the nodes of a target
    without each of which a candidate did not reproduce. Its answer about a target does not change, since a pass that
    begins again must propose the same.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        may_change_values: Callable[[], bool] = lambda: False,
        suspects: Callable[[], Sequence[int]] = tuple,
        ranking: Sequence[Sequence[int]] = (),
        known_needed: Callable[[Candidate], frozenset[int]] = lambda target: frozenset(),
    ) -> None:
        self.problem = problem
        self.ranking = ranking
        self._may_change_values = may_change_values
        self._suspects = suspects
        self.known_needed = lru_cache(maxsize=1)(known_needed)

    def for_guesses(self) -> PassContext:
        """A context for passes that are only foreseen: it raises NotFoundOutError for facts not found out yet."""

        def known(name: str) -> Any:
            if name not in vars(self):
                raise NotFoundOutError(name)
            return vars(self)[name]

        return PassContext(
            self.problem,
            may_change_values=partial(known, "may_change_values"),
            suspects=partial(known, "suspects"),
            ranking=self.ranking,
            known_needed=cache(self.known_needed.__wrapped__),
        )

    @cached_property
    def may_change_values(self) -> bool:
        """Whether candidates may compute other values than the original: see ``values.py``."""
        return self._may_change_values()

    @property
    def are_values_free(self) -> bool | None:
        """``may_change_values`` if a pass has needed it, else None."""
        return vars(self).get("may_change_values")

    @cached_property
    def suspects(self) -> Sequence[int]:
        """The suspected nodes: see ``reduce.suspected``."""
        return self._suspects()

    def may_freeze_recorded(self, tensors: Iterable[int]) -> bool:
        """Whether constants with the recorded values of these tensors cannot fail by themselves.

        If the check compares with golden values, every recorded value behind a wrong node is as wrong as the original:
        a candidate with such a constant would fail without the node.
        """
        return all(map(self.problem.is_vouched, tensors)) or self.may_change_values


Pass: TypeAlias = Callable[[PassContext, Candidate], NodeSearch]
"""A pass over nodes: a way to propose smaller candidates.

A pass is a generator over rounds. The driver checks the proposals of a round, in their order or several at once, and
sends back the first in the round's order that reproduces, which becomes the target, or None. The contract:

- A pass is deterministic: the same context, target and answers give the same rounds. The result never depends on how
  many proposals are checked at once.
- It does not repeat itself until nothing changes; the schedule does that.
- The answer may differ from the proposal, since the driver may have added nodes that cannot be cut away. A pass goes on
  from the candidate that it is sent.
- It may propose anything; a candidate that is no smaller than the target, or was checked before, costs nothing.
- Every proposal describes in a few words what it tries.
"""


def checks_by_halving(nodes: int) -> int:
    """The number of checks that find one of ``nodes`` by halving from both ends."""
    return 2 * max(1, (nodes - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class NamedPass:
    """A pass over nodes in the table of passes: its name on the command line, a summary in one line, and its cost.

    ``usual`` returns the usual number of checks for a number of nodes, for the progress display. ``halves``: both
    answers to each of its questions are equally likely, whatever the answers before. ``leaves_out``: it proposes the
    target without some nodes, so checks of the target without other nodes help to guess its answers.
    ``can_be_foreseen``: it may begin on a guess, since it needs no recorded values.
    """

    name: str
    summary: str
    search: Pass
    usual: Callable[[int], int] = checks_by_halving
    halves: bool = False
    leaves_out: bool = False
    can_be_foreseen: bool = False


@dataclass(frozen=True)
class Change:
    """A simpler model, and its description for the progress line, such as "without the unused input 'mask'".

    ``runs_if``: its nodes are those of a body, which runs only where these tensors, by name, are true or false.
    """

    model: onnx.ModelProto
    description: str
    runs_if: Mapping[str, bool] = field(default_factory=dict)


ChangeSearch: TypeAlias = Search[Change, "onnx.ModelProto", None]

ModelPass: TypeAlias = "Callable[[onnx.ModelProto], ChangeSearch]"
"""A pass over the model: a way to propose simpler models once few nodes are left.

Like a pass over nodes, it is a generator over rounds of independent proposals, in the order of preference. It is sent
the model of the first that reproduces, or None, and goes on from there. The contract is the same, and:

- It never changes a model that it was given or sent: it copies.
- Each proposal is simpler by a measure of the pass (fewer inputs, fewer attributes, fewer bytes of weights, ...), so
  that repeating the pass comes to an end. A model that is equal to the current one is not checked.
- Anything may be missing from a model: names, types, even what the standard requires.
"""


Option: TypeAlias = Literal["simplify", "anonymize"]
"""An option of the command line that enables passes."""


@dataclass(frozen=True, kw_only=True)
class NamedModelPass:
    """A pass over the model in the table of passes: its name on the command line, a summary, and when it may run.

    ``keeps_values``: every tensor that both models compute has the same values in both. ``changes_inputs`` and
    ``changes_outputs``: it may change them, so it does not run if the user keeps them. ``only_with`` are the options
    one of which must enable it; if there are none, it always runs. ``remarks`` returns lines on what the pass could not
    do with the final model.
    """

    name: str
    summary: str
    search: ModelPass
    keeps_values: bool = False
    changes_inputs: bool = False
    changes_outputs: bool = False
    only_with: tuple[Option, ...] = ()
    remarks: Callable[[onnx.ModelProto], Sequence[str]] = lambda model: ()


Message = TypeVar("Message")

Place: TypeAlias = tuple[tuple[int, int, int], ...]
"""The place of a graph: () is the model's own; each step is (node, attribute, number within the attribute)."""


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model."""
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def leave_out(
    items: Sequence[Item], without: Callable[[Sequence[Item]], Change], *, at_least_one: bool = False
) -> Search[Change, onnx.ModelProto, list[Item]]:
    """Leave out all items at once, then by halves; returns the items that can be left out.

    ``without`` makes the change that leaves items out. With ``at_least_one``, one item stays.
    """

    def others(kept: Sequence[Item]) -> list[Item]:
        kept_items = frozenset(kept)
        return [item for item in items if item not in kept_items]

    needed = yield from minimize_subset(items, lambda kept: without(others(kept)), at_least_one=at_least_one)
    return others(needed)


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether a node is If, Loop or Scan."""
    return node.op_type in {"If", "Loop", "Scan"} and walk.operator(node)[0] == ""


def places(model: onnx.ModelProto) -> Iterator[Place]:
    """The model's graph and every body inside it, outer ones first, in the order of the nodes."""
    waiting: list[tuple[Place, onnx.GraphProto]] = [((), model.graph)]
    while waiting:
        place, graph = waiting.pop(0)
        yield place
        waiting[:0] = [
            ((*place, (number, position, part)), body)
            for number, node in enumerate(graph.node)
            for position, attribute in enumerate(node.attribute)
            for part, body in enumerate(_graphs_of(attribute))
        ]


def _graphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def graph_at(model: onnx.ModelProto, place: Place) -> onnx.GraphProto:
    """The graph at a place."""
    graph = model.graph
    for number, position, part in place:
        graph = _graphs_of(graph.node[number].attribute[position])[part]
    return graph


def body_of(node: onnx.NodeProto, attribute: str) -> onnx.GraphProto | None:
    """The body in the attribute of this name; None if there is none."""
    return next((entry.g for entry in node.attribute if entry.name == attribute and entry.HasField("g")), None)


def names_in(model: onnx.ModelProto) -> set[str]:
    """The names of all tensors and nodes of the model's graphs."""
    names = set()
    for graph in walk.graphs(model):
        names |= walk.defined(graph)
        names.update(output.name for output in graph.output)
        names.update(name for node in graph.node for name in (node.name, *node.input))
    return names


def fresh(name: str, taken: set[str]) -> str:
    """A name like ``name`` that is not in ``taken``, to which it is added."""
    free, number = name, 1
    while free in taken or not free:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Rename the tensors that nodes read and write, also those that their bodies capture."""
    for node in nodes:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for body in walk.bodies(node):
            own = walk.defined(body)
            inner = {name: other for name, other in names.items() if name not in own}
            if inner:
                rename(body.node, inner)
                for output in body.output:
                    output.name = inner.get(output.name, output.name)


def read_in(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a graph's nodes read, and of its outputs."""
    names = {output.name for output in graph.output}
    for node in graph.node:
        names |= walk.reads(node)
    return names


def drop_dead_nodes(graph: onnx.GraphProto, may_go: Callable[[onnx.NodeProto], bool] = lambda node: True) -> None:
    """Remove the nodes of a graph that are not used, directly or indirectly, and ``may_go``."""
    is_changed = True
    while is_changed:
        read = read_in(graph)
        is_changed = walk.keep(graph.node, lambda node: bool(read.intersection(node.output)) or not may_go(node))  # noqa: B023


def drop_what_died(changed: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Remove the nodes of the model's graph and its bodies that are no longer used.

    Nodes that were not used ``before`` stay; the pass ``tidy`` tries to remove them.
    """
    unread: set[str] = set()
    for graph in walk.graphs(before):
        read = read_in(graph)
        unread.update(name for node in graph.node if read.isdisjoint(node.output) for name in node.output)
    for graph in reversed([changed.graph, *walk.graphs_within(changed.graph.node)]):
        drop_dead_nodes(graph, lambda node: any(node.output) and unread.isdisjoint(node.output))


def is_trivial(node: onnx.NodeProto) -> bool:
    """Whether a node is an Identity or a Constant."""
    return node.op_type in {"Identity", "Constant"} and walk.operator(node)[0] == ""


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all inferred types and without large values; nodes and bodies have the same places.

    Never raises: what cannot be inferred is missing.
    """
    return onnx_native.inferred(without_weights(model)).model


def types_in(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The declared types of a graph's tensors, by name."""
    types = {
        weight.name: onnx.helper.make_tensor_type_proto(weight.data_type, list(weight.dims))
        for weight in graph.initializer
    }
    for sparse in graph.sparse_initializer:
        types[sparse.values.name] = onnx.helper.make_tensor_type_proto(sparse.values.data_type, list(sparse.dims))
    for info in (*graph.value_info, *graph.output, *graph.input):
        if info.type.WhichOneof("value"):
            types[info.name] = info.type
    return types


def every_node(model: onnx.ModelProto) -> Iterator[tuple[Place, int, onnx.NodeProto]]:
    """Every node of the model's graph and its bodies: the place of its graph, its number there, and the node."""
    for place in places(model):
        for number, node in enumerate(graph_at(model, place).node):
            yield place, number, node


def described(node: onnx.NodeProto) -> str:
    """A node in messages: its operator, and its name if it has one."""
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> version of each operator set that a model imports; ONNX's own domain is ""."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator in these operator sets; None for operators that onnx does not know."""
    domain = walk.operator(node)[0]
    return walk.schema_of(node.op_type, opsets.get(domain, 1), domain)


def is_consistent(model: onnx.ModelProto) -> bool:
    """Whether shape inference finds no contradiction, and every Reshape keeps the number of elements."""
    inference = onnx_native.inferred(without_weights(model), strict=True)
    if inference.objection is not None:
        return False
    types = types_in(inference.model.graph)
    for node in inference.model.graph.node:
        if node.op_type == "Reshape" and node.input and node.output:
            ends = types.get(node.input[0]), types.get(node.output[0])
            before, after = (None if kind is None else element_count(kind) for kind in ends)
            if before is not None and after is not None and before != after:
                return False
    return True


def element_count(kind: onnx.TypeProto) -> int | None:
    """The number of elements of a tensor with a static shape; None for other types."""
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return math.prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def unrefuted(current: onnx.ModelProto, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes that shape inference does not refute and whose inputs and outputs have ranks.

    A demand that the current model does not meet itself is dropped.
    """
    is_current_consistent = has_current_ranks = None
    for change in changes:
        is_current_consistent = is_consistent(current) if is_current_consistent is None else is_current_consistent
        has_current_ranks = has_ranks(current) if has_current_ranks is None else has_current_ranks
        is_refuted = is_current_consistent and not is_consistent(change.model)
        if not is_refuted and (not has_current_ranks or has_ranks(change.model)):
            yield change


def has_ranks(model: onnx.ModelProto) -> bool:
    """Whether every input and output that is a tensor has a type and a rank, as onnx's checker demands."""
    kinds = [info.type for info in (*model.graph.input, *model.graph.output)]
    return all(
        kind.WhichOneof("value") not in {None, "tensor_type"}
        or (kind.tensor_type.elem_type != 0 and kind.tensor_type.HasField("shape"))
        for kind in kinds
    )


def refresh_types(model: onnx.ModelProto) -> None:
    """Remove the types in value_info, and give outputs inferred shapes, after the model was changed.

    Outputs of operators that onnx does not know keep their types.
    """
    opsets = opsets_of(model)
    unknown = {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}
    walk.keep(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    inferred_outputs = onnx_native.inferred(light).model.graph.output
    for info, typed in zip(model.graph.output, inferred_outputs, strict=True):
        if typed.type.tensor_type.HasField("shape"):
            info.type.CopyFrom(typed.type)


def refresh_types_behind(model: onnx.ModelProto, place: Place, changed: Iterable[str]) -> None:
    """Infer the types of all tensors that depend on ``changed`` ones of the graph at ``place``.

    A shape that cannot be inferred loses its sizes and keeps its rank.
    """
    names, behind = set(changed), set[str]()
    for depth in range(len(place), -1, -1):
        graph = graph_at(model, place[:depth])
        infos: list[onnx.ValueInfoProto] = []
        behind = set(names)
        for node in graph.node:
            if not behind.isdisjoint(walk.reads(node)):
                behind.update(node.output)
                for body in walk.graphs_within([node]):
                    infos += (*body.input, *body.output, *body.value_info)
        behind.discard("")
        infos += (info for info in (*graph.value_info, *graph.output) if info.name in behind)
        for dim in (dim for info in infos for dim in info.type.tensor_type.shape.dim):
            dim.Clear()
        if depth:
            names = set(graph_at(model, place[: depth - 1]).node[place[depth - 1][0]].output)
    kinds = types_in(inferred(model).graph)
    for info in (*model.graph.value_info, *model.graph.output):
        if info.name in behind and info.name in kinds:
            info.type.CopyFrom(kinds[info.name])
