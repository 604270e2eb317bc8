"""What a pass is, over nodes or over the model itself, its line in the table of passes, what it may ask, and what
passes over the model share: copies, free names, what onnx knows of operators, and whether shapes agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from biopsy.model import onnx_native, walk
from biopsy.model.infer import without_weights
from biopsy.reduction.problem import Candidate, NodeSearch, Problem
from biopsy.search.drive import Item, Search
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx


class NotFoundOutError(Exception):
    """What a pass wants to know would cost checks, and nobody has asked for it yet."""


class PassContext:
    """The problem, and what can be known of it besides its geometry.

    ``may_change_values`` and ``suspects`` may cost checks, so they are found out once, when a pass wants to know.
    ``ranking``: sets of nodes that a report names, the worst first. ``missed`` gives the nodes of a target, each of
    which alone was missing in a candidate that did not reproduce: what was known when a pass first asked about the
    target, since a pass that is begun anew must propose the same.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        may_change_values: Callable[[], bool] = lambda: False,
        suspects: Callable[[], Sequence[int]] = tuple,
        ranking: Sequence[Sequence[int]] = (),
        missed: Callable[[Candidate], frozenset[int]] = lambda target: frozenset(),
    ) -> None:
        self.problem = problem
        self.ranking = ranking
        self._may_change_values = may_change_values
        self._suspects = suspects
        self.missed = lru_cache(maxsize=1)(missed)

    def for_guesses(self) -> PassContext:
        """The same for a pass that may begin later: nothing is found out for it. Raises NotFoundOutError then."""

        def known(name: str) -> Any:
            if name not in vars(self):
                raise NotFoundOutError(name)
            return vars(self)[name]

        return PassContext(
            self.problem,
            may_change_values=partial(known, "may_change_values"),
            suspects=partial(known, "suspects"),
            ranking=self.ranking,
            missed=cache(self.missed.__wrapped__),
        )

    @cached_property
    def may_change_values(self) -> bool:
        """Whether candidates may compute other values than the original did: see ``values.py``."""
        return self._may_change_values()

    @property
    def are_values_free(self) -> bool | None:
        """The same, as far as a pass has wanted to know it; None if none has."""
        return vars(self).get("may_change_values")

    @cached_property
    def suspects(self) -> Sequence[int]:
        """Nodes that are suspected, the most suspicious first: see ``reduce.suspected``."""
        return self._suspects()

    def may_freeze_recorded(self, tensors: Iterable[int]) -> bool:
        """Whether constants with the recorded values of these tensors cannot fail by themselves.

        Where the check compares with golden values of its own, behind a wrong node every recorded value is as wrong as
        the original: a candidate that has it as a constant would fail without the node. Values that the user gave are
        those of the check; giving some says nothing of the others.
        """
        return all(map(self.problem.is_vouched, tensors)) or self.may_change_values


# The contract of a pass, and its line in the table of passes.

Pass: TypeAlias = Callable[[PassContext, Candidate], NodeSearch]
"""One way to propose smaller candidates.

A pass is a generator over rounds. The driver checks the proposals of a round, in their order or several at once, and
sends back the first in the round's order that reproduces, which is the target from then on, or None. What a pass may
rely on, and what it owes:

- It is deterministic: the same context, target and answers give the same rounds. The result never depends on how many
  proposals are checked at once.
- It never repeats itself to a fixed point; the schedule does that.
- The answer need not be what was proposed: the driver may have added nodes that cannot be cut away, or proposals may
  have been answered from memory. A pass goes on from the candidate that it is sent.
- It may propose anything; what is no smaller than the target, or known already, costs nothing.
- Every proposal says in a few words what it tries.
"""


def by_halves(nodes: int) -> int:
    """Checks that finding one node among ``nodes`` by halves takes, from both ends."""
    return 2 * max(1, (nodes - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class NamedPass:
    """A pass in the table of passes: its name on the command line, what it does in one line, and what it usually costs.

    ``usual`` gives checks for a number of nodes: what a person who waits is told. ``halves``: each of its questions is
    as likely to be answered one way as the other, whatever the answers before were. ``leaves_out``: it asks about the
    target without some nodes, so that the target without others, asked beside it, tells what it will be answered.
    ``can_be_foreseen``: it may be begun on a guess, since it has nothing recorded.
    """

    name: str
    summary: str
    search: Pass
    usual: Callable[[int], int] = by_halves
    halves: bool = False
    leaves_out: bool = False
    can_be_foreseen: bool = False


# The contract of a pass over the model itself: what runs once the nodes are few.
#
# By then the model is small, so these passes work on the protobuf object and propose whole models.


@dataclass(frozen=True)
class Change:
    """A simpler model, with words for the progress line, such as "without the unused input 'mask'"."""

    model: onnx.ModelProto
    description: str


ChangeSearch: TypeAlias = Search[Change, "onnx.ModelProto", None]

ModelPass: TypeAlias = "Callable[[onnx.ModelProto], ChangeSearch]"
"""One way to propose simpler models.

Like a pass over nodes, it is a generator over rounds of proposals that do not depend on each other, in the order of
preference; it is sent the model of the first that reproduces, or None, and goes on from there. It owes the same, and:

- It never changes the model that it is given, nor one that it was sent: it copies.
- Each proposal is simpler by the measure of the pass (fewer inputs, fewer attributes, fewer bytes of weights, ...), so
  that running it again and again ends. A model that does not differ from the current one is not checked.
- Everything may be missing from a model: names, types, even what the standard demands.
"""


Option: TypeAlias = Literal["simplify", "anonymize"]
"""An option of the command line that asks for more than a smaller model."""


@dataclass(frozen=True, kw_only=True)
class NamedModelPass:
    """A pass in the table: its name on the command line, what it does in one line, and when it may run.

    ``keeps_values``: every tensor that both models compute has the same values in both. ``changes_inputs`` and
    ``changes_outputs``: it may do so, and does not run where the user keeps them. ``only_with`` names the options of
    which one must ask for it; none for a pass that always runs. ``remarks`` tells, of the final model, what the pass
    could not do.
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
"""Where a graph stands: () is the model's own; each step is (node, attribute, number within the attribute)."""


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


def leave_out(
    items: Sequence[Item], without: Callable[[Sequence[Item]], Change], *, at_least_one: bool = False
) -> Search[Change, onnx.ModelProto, list[Item]]:
    """Leave out all items at once, then by halves; returns those that can go.

    ``without`` gives the change that leaves some out. ``at_least_one`` item stays.
    """

    def propose(kept: Sequence[Item]) -> Change:
        stay = frozenset(kept)
        return without([item for item in items if item not in stay])

    stay = frozenset((yield from minimize_subset(items, propose, at_least_one=at_least_one)))
    return [item for item in items if item not in stay]


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
    is_changed = True
    while is_changed:
        read = read_in(graph)
        is_changed = keep_only(graph.node, lambda node: bool(read.intersection(node.output)) or not may_go(node))  # noqa: B023


def drop_what_died(made: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Remove nodes of which nothing is read any more, of the model's graph and of bodies, and what only served them.

    Nodes that were read by nothing ``before`` stay: whether they can go is another question.
    """
    unread: set[str] = set()
    for graph in walk.graphs(before):
        read = read_in(graph)
        unread.update(name for node in graph.node if read.isdisjoint(node.output) for name in node.output)
    for graph in reversed([made.graph, *walk.graphs_within(made.graph.node)]):
        drop_dead_nodes(graph, lambda node: any(node.output) and unread.isdisjoint(node.output))


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


# What onnx knows of operators.


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Version of each operator set that a model imports; ONNX's own is ""."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator in the model's operator sets; None for operators that onnx does not know."""
    domain = walk.operator(node)[0]
    return walk.schema_of(node.op_type, opsets.get(domain, 1), domain)


# Whether the shapes of a model agree, and the types that follow from what was changed.


def is_consistent(model: onnx.ModelProto) -> bool:
    """Whether shapes agree as far as shape inference can tell, and every Reshape keeps the number of elements."""
    inference = onnx_native.inferred(without_weights(model), strict=True)
    if inference.objection is not None:
        return False
    told = inference.model
    kinds = types_in(told.graph)
    for node in told.graph.node:
        if node.op_type == "Reshape" and node.input and node.output:
            ends = kinds.get(node.input[0]), kinds.get(node.output[0])
            before, after = (None if kind is None else element_count(kind) for kind in ends)
            if before is not None and after is not None and before != after:
                return False
    return True


def element_count(kind: onnx.TypeProto) -> int | None:
    """Elements of a tensor of a static shape; None for other types."""
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return math.prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def unrefuted(current: onnx.ModelProto, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes that shape inference does not refute, and whose ends have ranks; all, where the model is so itself.

    The checker of onnx wants a rank of every input and output.
    """
    strict = ranked = None
    for change in changes:
        strict = is_consistent(current) if strict is None else strict
        ranked = has_ranks(current) if ranked is None else ranked
        if (not strict or is_consistent(change.model)) and (not ranked or has_ranks(change.model)):
            yield change


def has_ranks(model: onnx.ModelProto) -> bool:
    """Whether every input and output that is a tensor has a type and a rank."""
    kinds = [info.type for info in (*model.graph.input, *model.graph.output)]
    return all(
        kind.WhichOneof("value") not in {None, "tensor_type"}
        or (kind.tensor_type.elem_type != 0 and kind.tensor_type.HasField("shape"))
        for kind in kinds
    )


def tell_types_anew(model: onnx.ModelProto) -> None:
    """Drop the shapes that follow from the new ones, and give the outputs those that do."""
    opsets = opsets_of(model)
    unknown = {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}
    keep_only(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    told = onnx_native.inferred(light).model.graph.output
    for info, found in zip(model.graph.output, told, strict=True):
        if found.type.tensor_type.HasField("shape"):
            info.type.CopyFrom(found.type)


def forget_shapes_behind(model: onnx.ModelProto, place: Place, changed: Iterable[str]) -> None:
    """Tell anew the types that follow from tensors of the graph at a place, whose shapes may be others now.

    What cannot be inferred keeps its rank, which is likelier than any other.
    """
    names, behind = set(changed), set[str]()
    for depth in range(len(place), -1, -1):
        graph = graph_at(model, place[:depth])
        infos: list[onnx.ValueInfoProto] = []
        behind = set(names)
        for node in graph.node:
            if not behind.isdisjoint(walk.reads(node)):
                behind.update(node.output)
                for body in walk.graphs_within([node]):  # which read them
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
