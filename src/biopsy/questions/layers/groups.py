"""What neither the whole model nor isolated layers explain: layers that are wrong only together, and errors that add
up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from biopsy import errors, events
from biopsy.checks.message import message_of
from biopsy.comparison.noise import NoiseComparison
from biopsy.engines.worker import Worker
from biopsy.model.index import Node
from biopsy.model.nodes import RANDOM, neighbourhood_order
from biopsy.questions.layers.findings import Failure, LayerGroup, Rate, TensorError, failure_of
from biopsy.questions.layers.measurement import RUNS_IF_FLAKY, RUNS_TO_BE_SURE, RoundingJudge, WholeModel
from biopsy.questions.layers.question import origins_of, worst
from biopsy.questions.layers.recorded import CANNOT_RUN, ReferenceValues, Runs
from biopsy.questions.layers.subgraphs import Subgraph, Subgraphs, batches, run_in_batches
from biopsy.search.subset import minimized

_MOST_GROUPS = 8
_JUMP = 10.0
"""The tolerance ratio from which an error is looked at even where the model's outputs do not ask for it.

Rounding adds up within a few layers too.
"""

_NEAR = 64
"""Nodes of a neighbourhood that is searched for what makes a layer wrong whose inputs are right."""

_WINDOWS = (4, 16)
"""Nodes of the subgraphs that are looked through; any half of them that are neighbours stand in one together."""

_FEW = 32
"""Nodes of a group that a person can look at; more of them are rounding that adds up."""


class GroupSearch:
    """Looks for groups of layers that are wrong together, by runs of subgraphs. ``groups`` are those found so far.

    ``isolated`` are nodes that are wrong in isolation.
    """

    def __init__(self, runs: SubgraphRuns, whole: WholeModel) -> None:
        self.groups: list[LayerGroup] = []
        self.isolated: frozenset[int] = frozenset()
        self._unexplained_rest: list[str] = []
        self._subgraphs: Subgraphs = runs.subgraphs
        self._index = index = runs.subgraphs.index
        self._runs = runs
        self._whole = whole
        self._random = {node.number for node in index.nodes if node.op_type in RANDOM}
        self._windows_are_wrong = False

    def run(self, limit: int) -> None:
        """Look everywhere; at most ``limit`` bytes of tensors are in memory at a time."""
        for size in _WINDOWS:
            for window in self._windows(size, limit):
                nodes = set(window) - self._blamed
                fault = self._runs.fault(nodes)
                self._windows_are_wrong = self._windows_are_wrong or fault is not None
                if self._is_done or fault is None or fault.error is None:
                    continue
                if fault.error.tolerance_ratio >= _JUMP or not self._is_explained():
                    self._take(self._within(nodes, fault))
        hiding = (node for group in self.groups if group.hides for node in group.nodes)
        self._whole.narrow([self._index.names[tensor] for node in hiding for tensor in self._index.node_writes[node]])
        self._explain()

    def look_at(self, layers: Sequence[Node]) -> None:
        """Look around layers that are wrong in the whole model by far, although their inputs are right there."""
        for node in self._unexplained(layers):
            if node in self._rest and not self._is_done:
                self._take(self._around(node, self._rest, most=_NEAR))

    @property
    def remarks(self) -> list[str]:
        """What a reader must know besides."""
        rounded = self._runs.rounded
        if not rounded:
            return self._unexplained_rest
        most = max(rounded, key=len)
        noise = rounded[most]
        return [
            *self._unexplained_rest,
            f"{len(most)} layers together are out of tolerance by accumulated or amplified rounding; neither a layer "
            f"nor fusion is at fault: their error is {noise.ratio:.2g} times that of plain float32 on the same values, "
            f"and up to {noise.limit:g} times is rounding",
        ]

    @property
    def _blamed(self) -> frozenset[int]:
        return self.isolated.union(*(group.nodes for group in self.groups))

    @property
    def _rest(self) -> set[int]:
        """Nodes that are not known to be wrong, and not random."""
        return set(range(len(self._index.nodes))) - self._blamed - self._random

    @property
    def _is_done(self) -> bool:
        return len(self.groups) >= _MOST_GROUPS or self._runs.is_spent

    def _take(self, group: LayerGroup | None) -> None:
        if group is not None and len(group.nodes) <= _FEW:
            self.groups.append(group)

    def _is_explained(self) -> bool:
        """Whether the model is right, or nearly, without what is blamed for its being wrong."""
        if not self._whole.is_wrong:
            return True
        if not self._blamed:
            return False
        left = self._runs.fault(self._rest)
        return left is None or (left.error is not None and left.error.tolerance_ratio < _JUMP)

    def _explain(self) -> None:
        """Take away what is wrong by itself. While the rest is wrong, find out which part of it is, and go on."""
        while not self._is_done and not self._is_explained():
            rest = self._rest
            fault = self._runs.fault(rest)
            if fault is None:
                return
            group = self._group_in(rest, fault)
            if group is None or len(group.nodes) > _FEW or self._runs.is_spent:
                what = "cannot be run" if fault.failure is not None else "are out of tolerance"
                self._unexplained_rest.append(
                    f"{len(rest)} layers together {what}, and no few of them that were found: "
                    + ("a fault that needs many" if fault.failure is not None else "rounding that adds up, perhaps")
                )
                return
            self._take(group)

    def _group_in(self, rest: set[int], fault: SubgraphFault) -> LayerGroup | None:
        """A group within ``rest``, which is wrong: around what points to it, else by halves where there is hope."""
        producer, ids = self._index.producer, self._index.ids
        names = [name for effect in self._whole.effects if effect.change == "gone" for name in effect.tensors]
        hidden = [producer[ids[name]] for name in names if ids[name] in producer]
        for centre in (*hidden, *self._unexplained(self._index.nodes)):
            if centre in rest and (group := self._around(centre, rest, fault)) is not None:
                return group
        if fault.failure is None and not self._windows_are_wrong:
            return None
        return self._within(rest, fault)

    def _unexplained(self, layers: Sequence[Node]) -> list[int]:
        """Layers that are wrong in the whole model by far, although their inputs are right there; the worst first."""
        far_off = []
        for node in layers:
            error = self._whole.error_of(node)
            inputs = (self._whole.propagated.get(self._index.names[tensor]) for tensor in node.reads)
            if error is None or error.passed or error.tolerance_ratio < _JUMP or node.number in self._random:
                continue
            if all(before is None or before.passed for before in inputs):
                far_off.append((-error.tolerance_ratio, node.number))
        return [number for _, number in sorted(far_off)]

    # Groups. Observing does not help there: what is marked is not fused. So the neighbourhood of a layer that something
    # points to grows until the error shows at its ends; then what is not needed for it goes.

    def _windows(self, size: int, limit: int) -> list[tuple[int, ...]]:
        """The subgraphs of ``size`` neighbours without blame that are wrong, each half over the next; the worst first.

        They are run many at a time, below ``limit`` bytes of tensors. An engine that fails at one says nothing: a cut
        may be what it does not take.
        """
        windows: list[Subgraph] = []
        order = neighbourhood_order(self._index, sorted(self._rest))
        for start in range(0, max(len(order) - size // 2, 1), size // 2):
            layers = tuple(order[start : start + size])
            closed = self._subgraphs.closed(layers)
            if closed and (outputs := self._subgraphs.ends(closed)):
                windows.append(Subgraph(self._subgraphs, layers, closed, outputs))
        wrong: list[tuple[float, tuple[int, ...]]] = []
        runs, done = self._runs, itertools.count(1)
        for _ in range(runs.runs_each):
            batched = batches(windows, limit)
            for window, given, expected in run_in_batches(self._subgraphs, runs.suspect, batched, runs.reference.of):
                runs.listener(events.Measured("windows", next(done), len(windows)))
                beyond = [] if isinstance(given, errors.BiopsyError) else runs.errors(window.outputs, given, expected)
                if beyond:
                    wrong.append((-worst(beyond).tolerance_ratio, window.layers))
        return list(dict.fromkeys(layers for _, layers in sorted(wrong)))

    def _around(
        self, centre: int, among: Iterable[int], like: SubgraphFault | None = None, most: int | None = None
    ) -> LayerGroup | None:
        """The group of layers around ``centre`` that is wrong: its neighbourhood grows until the error shows.

        It grows to about ``most`` nodes, and only over those of ``among``. ``like``: wrong in this way.
        """
        index, allowed = self._index, set(among)
        area, edge, steps = {centre}, {centre}, 1
        while not self._runs.is_spent:
            for _ in range(steps):
                near = {index.producer.get(tensor, -1) for node in edge for tensor in index.node_reads[node]}
                read = (index.consumers.get(tensor, ()) for node in edge for tensor in index.node_writes[node])
                edge = near.union(*read) & (allowed - area)
                area |= edge
            fault = self._runs.fault(area)
            if fault is not None and (like is None or fault.is_like(like)):
                return self._within(area, fault)
            if not edge or (most is not None and len(area) > most):
                return None
            steps *= 2
        return None

    def _within(self, nodes: Iterable[int], fault: SubgraphFault) -> LayerGroup:
        """The few of some nodes that are wrong in the same way together."""
        order = neighbourhood_order(self._index, sorted(nodes))

        def is_wrong(some: Sequence[int]) -> bool:
            other = self._runs.fault(some)
            return other is not None and other.is_like(fault)

        few_nodes = tuple(sorted(minimized(order, is_wrong)))
        last = self._runs.fault(few_nodes) or fault
        rate = self._runs.flaky_rate(few_nodes, last)
        if rate is not None and self._runs.runs_each == 1:  # it is noticed only now
            self._runs.expect_flakiness()
            return self._within(nodes, fault)
        closed = self._subgraphs.closed(few_nodes) or few_nodes
        layers = self._subgraphs.layers(closed) or few_nodes
        return LayerGroup(
            nodes=layers,
            labels=tuple(self._index.nodes[node].label for node in layers),
            inputs=tuple(self._subgraphs.names(self._subgraphs.inputs(closed))),
            outputs=tuple(self._subgraphs.names(self._subgraphs.ends(few_nodes))),
            error=last.error,
            failure=last.failure,
            hides=self._hides(few_nodes, last),
            rounding_ratio=last.noise.ratio if last.noise is not None else None,
            flaky=rate,
            is_of_model=last.is_of_model,
            origins=origins_of(self._index, layers),
        )

    def _hides(self, nodes: tuple[int, ...], fault: SubgraphFault) -> bool | None:
        """Whether a group is right when the tensors inside it are marked; None if there are none."""
        closed = self._subgraphs.closed(nodes) or nodes
        ends = self._subgraphs.ends(closed)
        inner = [
            tensor
            for node in nodes
            for tensor in self._subgraphs.recorded_writes(node)
            if tensor not in ends and tensor in self._index.consumers
        ]
        if not inner:
            return None
        marked = self._runs.fault_at(closed, [*ends, *inner])
        return marked is None or not marked.is_like(fault)


# How a subgraph is wrong in the suspect: run unmarked, fed with recorded values, and judged by its ends.


@dataclass(frozen=True)
class SubgraphFault:
    """How a subgraph is wrong: by the error of its worst end, or because the engine fails at it.

    ``noise`` holds the error against plain float32's; None if that is not known. ``is_of_model``: the suspect gives
    what the model says there, and the golden values are of something else.
    """

    error: TensorError | None = None
    failure: Failure | None = None
    noise: NoiseComparison | None = None
    is_of_model: bool = False

    def is_like(self, other: SubgraphFault) -> bool:
        """Whether two subgraphs are wrong in the same way: both give wrong values, or fail with the same words."""
        if self.failure is None or other.failure is None:
            return self.failure is other.failure
        left = self.failure
        right = other.failure
        if (left.stage, left.kind) != (right.stage, right.kind):
            return False
        return left.kind.startswith("SIG") or message_of(left.message).means(message_of(right.message))


@dataclass(kw_only=True)
class SubgraphRuns:
    """Runs subgraphs one by one, at most ``budget`` times, and remembers what came of them.

    ``runs_each``: how often one is run until it is wrong, in a flaky suspect more than once. ``rounded``: subgraphs
    that are out of tolerance by no more than rounding, and what shows it.
    """

    subgraphs: Subgraphs
    suspect: Worker
    reference: ReferenceValues
    rounding: RoundingJudge
    listener: events.Listener
    runs_each: int = 1
    budget: int = 400
    rounded: dict[tuple[int, ...], NoiseComparison] = field(default_factory=dict)
    _runs: int = 0
    _known: dict[tuple[int, ...], SubgraphFault | None] = field(default_factory=dict)

    @property
    def is_spent(self) -> bool:
        """Whether no more runs are allowed."""
        return self._runs >= self.budget

    def fault(self, nodes: Iterable[int]) -> SubgraphFault | None:
        """How a subgraph is wrong; None if it is right, or says nothing."""
        closed = self.subgraphs.closed(nodes)
        if not closed or self.is_spent:
            return None
        if closed not in self._known:
            self._known[closed] = self.fault_at(closed, self.subgraphs.ends(closed))
        return self._known[closed]

    def fault_at(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> SubgraphFault | None:
        """How a closed subgraph with these outputs is wrong: of a flaky suspect, in the first run that shows it."""
        tries = range(self.runs_each if outputs else 0)
        return next((fault for _ in tries if (fault := self._run(nodes, outputs)) is not None), None)

    def flaky_rate(self, nodes: tuple[int, ...], fault: SubgraphFault) -> Rate | None:
        """In how many runs a subgraph is wrong in this way; None if in all of them."""
        closed = self.subgraphs.closed(nodes) or nodes
        is_costly = fault.failure is not None and self.runs_each == 1  # a new process for each run
        runs = RUNS_TO_BE_SURE if is_costly else RUNS_IF_FLAKY
        more = (self._run(closed, self.subgraphs.ends(closed)) for _ in range(runs - (self.runs_each == 1)))
        wrong = sum(other is not None and other.is_like(fault) for other in more) + (self.runs_each == 1)
        return Rate(max(wrong, 1), runs) if wrong < runs else None

    def expect_flakiness(self) -> None:
        """Run everything more often from now on: what looked right before may have been luck."""
        self.runs_each = RUNS_IF_FLAKY
        self._known.clear()

    def errors(self, outputs: Sequence[int], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those ends of a subgraph that are out of tolerance."""
        measured = self.reference.errors(self.subgraphs.names(outputs), runs, expected)
        return [error for error in measured if not error.passed]

    def _run(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> SubgraphFault | None:
        """How the ends of a subgraph are wrong in one run; None if they are right, or wrong by rounding only."""
        self._runs += 1
        self.listener(events.Measured("groups", self._runs, self.budget))
        model = self.subgraphs.model(nodes, outputs)
        try:
            runs = self.suspect.run(model, self.subgraphs.recorded.fed.path)
        except errors.EngineFailure as error:
            return SubgraphFault(failure=failure_of(error))
        except CANNOT_RUN:
            return None
        # By recorded values first, then by what the reference gives for this very subgraph, then beside plain float32.
        expected = self.reference.of(model)
        wrong = self.errors(outputs, runs, expected)
        if wrong and expected is None:
            wrong = self.errors(outputs, runs, self.reference.of(model, always=True))
        if not wrong:
            return None
        judged = self.rounding.judge(model, [error.tensor for error in wrong], runs)
        if judged is None:
            return SubgraphFault(worst(wrong))
        if judged.noise.passed:
            self.rounded[nodes] = judged.noise
            return None
        return SubgraphFault(worst(wrong), noise=judged.noise, is_of_model=judged.is_of_model)
