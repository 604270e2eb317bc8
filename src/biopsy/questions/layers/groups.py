"""Finds groups of layers that are wrong together although each is right in isolation."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from biopsy import errors, events
from biopsy.checks.message import message_of
from biopsy.comparison.noise import NoiseComparison
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.index import Node
from biopsy.model.nodes import RANDOM, neighbourhood_order
from biopsy.questions.layers.findings import Failure, LayerGroup, Rate, TensorError, failure_of
from biopsy.questions.layers.measurement import RUNS_IF_FLAKY, RUNS_TO_BE_SURE, RoundingJudge, WholeModel
from biopsy.questions.layers.question import origins_of, worst
from biopsy.questions.layers.recorded import ReferenceValues, Runs
from biopsy.questions.layers.subgraphs import Subgraph, Subgraphs, batches, run_in_batches
from biopsy.search.subset import minimized
from biopsy.tensors.results import Array

_MOST_GROUPS = 8
_FAR_OFF = 10.0
"""The tolerance ratio from which an error is searched for even if the model's outputs do not show it."""

_MOST_NEIGHBOURS = 64
"""Nodes in the searched neighbourhood of a layer that is wrong although its inputs are right."""

_WINDOWS = (4, 16)
"""Numbers of nodes in the subgraphs that are run one after the other; each overlaps half of the next."""

_MOST_IN_GROUP = 32
"""Nodes in a group; larger ones are accumulated rounding, and too large to read."""


class GroupSearch:
    """Finds ``groups`` of layers that are wrong together, by runs of subgraphs.

    ``isolated`` are the nodes that are wrong in isolation.
    """

    def __init__(self, runs: SubgraphRuns, whole: WholeModel) -> None:
        self.groups: list[LayerGroup] = []
        self.isolated: frozenset[int] = frozenset()
        self._unexplained_remarks: list[str] = []
        self._subgraphs: Subgraphs = runs.subgraphs
        self._index = index = runs.subgraphs.index
        self._runs = runs
        self._whole = whole
        self._random = {node.number for node in index.nodes if node.op_type in RANDOM}
        self._windows_are_wrong = False

    def run(self, limit: int) -> None:
        """Search the whole model with at most ``limit`` bytes of tensors in memory at a time."""
        for size in _WINDOWS:
            for window in self._windows(size, limit):
                nodes = set(window) - self._blamed
                fault = self._runs.fault(nodes)
                self._windows_are_wrong = self._windows_are_wrong or fault is not None
                if self._is_done or fault is None or fault.error is None:
                    continue
                if fault.error.tolerance_ratio >= _FAR_OFF or not self._is_explained():
                    self._add_group(self._minimal_group(nodes, fault))
        hiding = (node for group in self.groups if group.hides for node in group.nodes)
        self._whole.narrow_effects(
            [self._index.names[tensor] for node in hiding for tensor in self._index.node_writes[node]]
        )
        # Find further groups as long as the model without the blamed nodes is wrong.
        while not self._is_done and not self._is_explained():
            unblamed = self._unblamed
            fault = self._runs.fault(unblamed)
            if fault is None:
                return
            group = self._group_among(unblamed, fault)
            if group is None or len(group.nodes) > _MOST_IN_GROUP or self._runs.is_spent:
                what = "cannot be run" if fault.failure is not None else "are out of tolerance"
                self._unexplained_remarks.append(
                    f"{len(unblamed)} layers together {what}, and no small group of them was found: "
                    + ("a fault that needs many" if fault.failure is not None else "rounding that adds up, perhaps")
                )
                return
            self._add_group(group)

    def search_around(self, layers: Sequence[Node]) -> None:
        """Search around layers that are far off in the whole model although their inputs are right."""
        for node in self._unexplained(layers):
            if node in self._unblamed and not self._is_done:
                self._add_group(self._group_around(node, self._unblamed, most=_MOST_NEIGHBOURS))

    @property
    def remarks(self) -> list[str]:
        """Remarks for a reader: errors without a small group, and accumulated rounding."""
        rounded = self._runs.rounded
        if not rounded:
            return self._unexplained_remarks
        most = max(rounded, key=len)
        noise = rounded[most]
        return [
            *self._unexplained_remarks,
            f"{len(most)} layers together are out of tolerance by accumulated or amplified rounding; neither a layer "
            f"nor fusion is at fault: their error is {noise.ratio:.2g} times that of a plain run on the same values, "
            f"and up to {noise.limit:g} times is rounding",
        ]

    @property
    def _blamed(self) -> frozenset[int]:
        return self.isolated.union(*(group.nodes for group in self.groups))

    @property
    def _unblamed(self) -> set[int]:
        """Nodes that are neither random nor known to be wrong."""
        return set(range(len(self._index.nodes))) - self._blamed - self._random

    @property
    def _is_done(self) -> bool:
        return len(self.groups) >= _MOST_GROUPS or self._runs.is_spent

    def _add_group(self, group: LayerGroup | None) -> None:
        if group is not None and len(group.nodes) <= _MOST_IN_GROUP:
            self.groups.append(group)

    def _is_explained(self) -> bool:
        """Whether the model is right, or nearly, without the blamed nodes."""
        if not self._whole.is_wrong:
            return True
        if not self._blamed:
            return False
        left = self._runs.fault(self._unblamed)
        return left is None or (left.error is not None and left.error.tolerance_ratio < _FAR_OFF)

    def _group_among(self, nodes: set[int], fault: SubgraphFault) -> LayerGroup | None:
        """A group among ``nodes``, which are wrong together: around layers that point to it, else by bisection."""
        producer, ids = self._index.producer, self._index.ids
        names = [name for effect in self._whole.effects if effect.change == "gone" for name in effect.tensors]
        hidden = [producer[ids[name]] for name in names if ids[name] in producer]
        for centre in (*hidden, *self._unexplained(self._index.nodes)):
            if centre in nodes and (group := self._group_around(centre, nodes, fault)) is not None:
                return group
        if fault.failure is None and not self._windows_are_wrong:
            return None
        return self._minimal_group(nodes, fault)

    def _unexplained(self, layers: Sequence[Node]) -> list[int]:
        """Layers that are far off in the whole model although their inputs are right, the worst first."""
        far_off = []
        for node in layers:
            error = self._whole.error_of(node)
            inputs = (self._whole.propagated.get(self._index.names[tensor]) for tensor in node.reads)
            if error is None or error.passed or error.tolerance_ratio < _FAR_OFF or node.number in self._random:
                continue
            if all(before is None or before.passed for before in inputs):
                far_off.append((-error.tolerance_ratio, node.number))
        return [number for _, number in sorted(far_off)]

    def _windows(self, size: int, limit: int) -> list[tuple[int, ...]]:
        """Subgraphs of ``size`` unblamed neighbours with wrong values, the worst first.

        Batches take at most ``limit`` bytes of tensors. An engine's failure does not count: a cut may cause it.
        """
        windows: list[Subgraph] = []
        order = neighbourhood_order(self._index, sorted(self._unblamed))
        for start in range(0, max(len(order) - size // 2, 1), size // 2):
            layers = tuple(order[start : start + size])
            closed = self._subgraphs.closed(layers)
            if closed and (outputs := self._subgraphs.ends(closed)):
                windows.append(Subgraph(self._subgraphs, layers, closed, outputs))
        wrong: list[tuple[float, tuple[int, ...]]] = []
        runs, done = self._runs, itertools.count(1)
        for _ in range(runs.runs_each):
            batched = batches(windows, limit)
            expected_of = runs.reference.run_subgraph
            for window, values, expected in run_in_batches(self._subgraphs, runs.suspect, batched, expected_of):
                runs.listener(events.Measured("windows", next(done), len(windows)))
                beyond = [] if isinstance(values, errors.BiopsyError) else runs.errors(window.outputs, values, expected)
                if beyond:
                    wrong.append((-worst(beyond).tolerance_ratio, window.layers))
        return list(dict.fromkeys(layers for _, layers in sorted(wrong)))

    def _group_around(
        self, centre: int, among: Iterable[int], like: SubgraphFault | None = None, most: int | None = None
    ) -> LayerGroup | None:
        """The minimal wrong group around ``centre``: its neighbourhood grows until the error shows, then shrinks.

        Marking tensors would not help, as it prevents fusion. The neighbourhood grows over nodes of ``among``, to about
        ``most`` nodes. ``like``: find only the same fault.
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
                return self._minimal_group(area, fault)
            if not edge or (most is not None and len(area) > most):
                return None
            steps *= 2
        return None

    def _minimal_group(self, nodes: Iterable[int], fault: SubgraphFault) -> LayerGroup:
        """A minimal group among ``nodes`` with the same fault."""
        order = neighbourhood_order(self._index, sorted(nodes))

        def is_wrong(some: Sequence[int]) -> bool:
            other = self._runs.fault(some)
            return other is not None and other.is_like(fault)

        minimal_nodes = tuple(sorted(minimized(order, is_wrong)))
        last = self._runs.fault(minimal_nodes) or fault
        rate = self._runs.flaky_rate(minimal_nodes, last)
        if rate is not None and self._runs.runs_each == 1:  # flakiness is noticed only now
            self._runs.expect_flakiness()
            return self._minimal_group(nodes, fault)
        closed = self._subgraphs.closed(minimal_nodes) or minimal_nodes
        layers = self._subgraphs.layers(closed) or minimal_nodes
        return LayerGroup(
            nodes=layers,
            labels=tuple(self._index.nodes[node].label for node in layers),
            inputs=tuple(self._subgraphs.names(self._subgraphs.inputs(closed))),
            outputs=tuple(self._subgraphs.names(self._subgraphs.ends(minimal_nodes))),
            error=last.error,
            failure=last.failure,
            hides=self._hides(minimal_nodes, last),
            rounding_ratio=last.noise.ratio if last.noise is not None else None,
            flaky=rate,
            is_of_model=last.is_of_model,
            origins=origins_of(self._index, layers),
        )

    def _hides(self, nodes: tuple[int, ...], fault: SubgraphFault) -> bool | None:
        """Whether the group is right if its inner tensors are marked; None if there are none."""
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
        marked = self._runs.fault_at(closed, ends, inner)
        return marked is None or not marked.is_like(fault)


@dataclass(frozen=True)
class SubgraphFault:
    """The fault of a subgraph fed with recorded values: the error of its worst end, or the engine's failure.

    ``noise`` compares the error with plain float32's; None if unknown. ``is_of_model``: see ``RoundingVerdict``.
    """

    error: TensorError | None = None
    failure: Failure | None = None
    noise: NoiseComparison | None = None
    is_of_model: bool = False

    def is_like(self, other: SubgraphFault) -> bool:
        """Whether two faults are the same: errors of the same kind, or failures with the same message."""
        left, right = self.failure, other.failure
        if left is None or right is None:
            kinds = {"" if each.error is None else each.error.kind for each in (self, other)}
            return left is right and len(kinds) == 1
        if (left.stage, left.kind) != (right.stage, right.kind):
            return False
        return left.kind.startswith("SIG") or message_of(left.message).means(message_of(right.message))


@dataclass(kw_only=True)
class SubgraphRuns:
    """Runs subgraphs one by one, at most ``budget`` times, and remembers their faults.

    ``runs_each``: how often a right subgraph is run, more than once for a flaky suspect. ``rounded``: the subgraphs
    that are out of tolerance by rounding only.
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
        """The fault of a subgraph; None if it is right or cannot be run."""
        closed = self.subgraphs.closed(nodes)
        if not closed or self.is_spent:
            return None
        if closed not in self._known:
            self._known[closed] = self.fault_at(closed, self.subgraphs.ends(closed))
        return self._known[closed]

    def fault_at(
        self, nodes: tuple[int, ...], outputs: Sequence[int], marked: Sequence[int] = ()
    ) -> SubgraphFault | None:
        """The fault of a closed subgraph at these outputs, in the first run that shows one.

        Tensors that are ``marked`` are outputs too, whatever their values are.
        """
        tries = range(self.runs_each if outputs else 0)
        return next((fault for _ in tries if (fault := self._run(nodes, outputs, marked)) is not None), None)

    def wrong_values(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> dict[str, list[Array]] | None:
        """The outputs of a closed subgraph, with a value per sample, in the first wrong run; None if none is."""
        names = self.subgraphs.names(outputs)
        for _ in range(self.runs_each):
            with contextlib.suppress(*CANNOT_RUN):
                runs = self.suspect.run(self.subgraphs.model(nodes, outputs), self.subgraphs.recorded.fed.path)
                values = {name: [run[name] for run in runs] for name in names if all(name in run for run in runs)}
                if self.errors(outputs, runs, None):
                    return values
        return None

    def flaky_rate(self, nodes: tuple[int, ...], fault: SubgraphFault) -> Rate | None:
        """In how many runs a subgraph has this fault; None if in all of them."""
        closed = self.subgraphs.closed(nodes) or nodes
        is_costly = fault.failure is not None and self.runs_each == 1  # a new process for each run
        runs = RUNS_TO_BE_SURE if is_costly else RUNS_IF_FLAKY
        more = (self._run(closed, self.subgraphs.ends(closed)) for _ in range(runs - (self.runs_each == 1)))
        wrong = sum(other is not None and other.is_like(fault) for other in more) + (self.runs_each == 1)
        return Rate(max(wrong, 1), runs) if wrong < runs else None

    def expect_flakiness(self) -> None:
        """Run everything more often from now on, and forget earlier results."""
        self.runs_each = RUNS_IF_FLAKY
        self._known.clear()

    def errors(self, outputs: Sequence[int], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of the outputs that are out of tolerance."""
        measured = self.reference.errors(self.subgraphs.names(outputs), runs, expected)
        return [error for error in measured if not error.passed]

    def _run(self, nodes: tuple[int, ...], outputs: Sequence[int], marked: Sequence[int] = ()) -> SubgraphFault | None:
        """The fault of a subgraph in one run; None if it is right, or wrong by rounding only."""
        self._runs += 1
        self.listener(events.Measured("groups", self._runs, self.budget))
        model = self.subgraphs.model(nodes, [*outputs, *marked])
        try:
            runs = self.suspect.run(model, self.subgraphs.recorded.fed.path)
        except errors.EngineFailure as error:
            return SubgraphFault(failure=failure_of(error))
        except CANNOT_RUN:
            return None
        # Compare with recorded values first, then with the reference's own run of this subgraph, then with float32.
        expected = self.reference.run_subgraph(model)
        wrong = self.errors(outputs, runs, expected)
        if wrong and expected is None:
            wrong = self.errors(outputs, runs, self.reference.run_subgraph(model, always=True))
        if not wrong:
            return None
        if any(error.form for error in wrong):
            return SubgraphFault(worst(wrong))
        judged = self.rounding.judge(model, [error.tensor for error in wrong], runs)
        if judged is None:
            return SubgraphFault(worst(wrong))
        if judged.noise.passed and not judged.is_of_model:
            self.rounded[nodes] = judged.noise
            return None
        return SubgraphFault(worst(wrong), noise=judged.noise, is_of_model=judged.is_of_model)
