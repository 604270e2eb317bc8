"""Cuts where observing does not help: layers that are right one by one, and wrong where the engine runs them together.

Pieces of the graph are run unmarked, fed with recorded values, and only their ends are looked at. Around a layer that
something points to, the neighbourhood grows until the error shows; then what is not needed for it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.checks.message import message_of
from biopsy.comparison.noise import NoiseComparison
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import Failure, Group, Rate, TensorError
from biopsy.layerwise.isolated_layers import RUNS_IF_FLAKY, RUNS_TO_BE_SURE, failure_of, run_apart
from biopsy.layerwise.rounding import RoundingJudge
from biopsy.layerwise.subgraphs import Part, Pieces
from biopsy.layerwise.tensor_errors import worst
from biopsy.layerwise.truth import CANNOT_RUN, Runs, Truth
from biopsy.model.node_order import neighbourhood_order
from biopsy.search.subset import minimized


@dataclass(frozen=True)
class Wrong:
    """How a piece is wrong: by the error of its worst end, or because the engine fails at it.

    ``noise`` holds the error against plain float32's; None if that is not known.
    """

    error: TensorError | None = None
    failure: Failure | None = None
    noise: NoiseComparison | None = None

    def is_like(self, other: Wrong) -> bool:
        """Whether two pieces are wrong in the same way: both give wrong values, or fail with the same words."""
        if self.failure is None or other.failure is None:
            return self.failure is other.failure
        return _same_failure(self.failure, other.failure)


def _same_failure(one: Failure, other: Failure) -> bool:
    """Whether two failures are the same one; of a signal, what the dying process printed does not matter."""
    if (one.stage, one.kind) != (other.stage, other.kind):
        return False
    return one.kind.startswith("SIG") or message_of(one.message).means(message_of(other.message))


class Groups:
    """Looks for groups of layers that are wrong together, in at most ``budget`` runs of pieces."""

    def __init__(
        self,
        pieces: Pieces,
        worker: Worker,
        truth: Truth,
        rounding: RoundingJudge,
        listener: events.Listener,
        *,
        flaky: bool = False,
        budget: int = 400,
    ) -> None:
        self.rounded: dict[tuple[int, ...], NoiseComparison] = {}
        """Pieces that are out of tolerance by no more than rounding, and what tells it."""
        self._pieces = pieces
        self._worker = worker
        self._truth = truth
        self._rounding = rounding
        self._listener = listener
        self._each = RUNS_IF_FLAKY if flaky else 1
        self._runs = 0
        self._budget = budget
        self._known: dict[tuple[int, ...], Wrong | None] = {}

    @property
    def is_spent(self) -> bool:
        """Whether no more runs are allowed."""
        return self._runs >= self._budget

    def wrong(self, nodes: Iterable[int]) -> Wrong | None:
        """How a piece is wrong; None if it is right, or says nothing."""
        closed = self._pieces.closed(nodes)
        if not closed or self.is_spent:
            return None
        if closed not in self._known:
            self._known[closed] = self._run(closed, self._pieces.ends(closed))
        return self._known[closed]

    def windows(self, among: Iterable[int], size: int, limit: int) -> list[tuple[int, ...]]:
        """The pieces of ``size`` neighbours, each half over the next one, that are wrong; the worst first.

        They are run many at a time, below ``limit`` bytes of tensors. An engine that fails at one says nothing: a cut
        may be what it does not take.
        """
        order = neighbourhood_order(self._pieces.index, sorted(among))
        starts = range(0, max(len(order) - size // 2, 1), size // 2)
        parts = []
        for start in starts:
            about = tuple(order[start : start + size])
            closed = self._pieces.closed(about)
            if closed and (outputs := self._pieces.ends(closed)):
                parts.append(Part(self._pieces, about, closed, outputs))
        found: list[tuple[float, tuple[int, ...]]] = []
        done = itertools.count(1)

        def keep(part: Part, runs: Runs | errors.BiopsyError, expected: Runs | None) -> None:
            self._listener(events.Measured("windows", next(done), len(parts)))
            wrong = [] if isinstance(runs, errors.BiopsyError) else self._errors(part.outputs, runs, expected)
            if wrong:
                found.append((-worst(wrong).times, part.about))

        for _ in range(self._each):
            run_apart(self._pieces, self._worker, parts, limit, keep, self._truth.of)
        return list(dict.fromkeys(about for _, about in sorted(found)))

    def _run(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> Wrong | None:
        """Run a piece, in a suspect that wavers until it is wrong or that is no luck any more."""
        tries = range(self._each if outputs else 0)
        return next((found for _ in tries if (found := self._run_once(nodes, outputs)) is not None), None)

    def _run_once(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> Wrong | None:
        self._runs += 1
        self._listener(events.Measured("groups", self._runs, self._budget))
        model = self._pieces.model(nodes, outputs)
        try:
            runs = self._worker.run(model, self._pieces.recorded.path)
        except errors.EngineFailure as error:
            return Wrong(failure=failure_of(error))
        except CANNOT_RUN:
            return None
        return self._judged(nodes, model, outputs, runs)

    def _judged(self, nodes: tuple[int, ...], model: ModelInput, outputs: Sequence[int], runs: Runs) -> Wrong | None:
        """How the ends of a piece are wrong; None if they are right, or wrong by rounding only.

        By recorded values first, then by what the reference gives for this very piece, then beside plain float32.
        """
        expected = self._truth.of(model)
        bad = self._errors(outputs, runs, expected)
        if bad and expected is None:
            bad = self._errors(outputs, runs, self._truth.of(model, always=True))
        if not bad:
            return None
        noise = self._rounding.judge(model, [error.tensor for error in bad], runs)
        if noise is not None and noise.passed:
            self.rounded[nodes] = noise
            return None
        return Wrong(worst(bad), noise=noise)

    def _errors(self, outputs: Sequence[int], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those ends of a piece that are out of tolerance."""
        names = [self._pieces.index.names[tensor] for tensor in outputs]
        return [error for error in self._truth.errors(names, runs, expected) if not error.passed]

    def around(
        self, centre: int, among: Iterable[int], like: Wrong | None = None, most: int | None = None
    ) -> Group | None:
        """The group of layers around ``centre`` that is wrong: its neighbourhood grows until the error shows.

        It grows to about ``most`` nodes, and only over those of ``among``. ``like``: wrong in this way.
        """
        allowed = set(among)
        area, edge, steps = {centre}, {centre}, 1
        while not self.is_spent:
            for _ in range(steps):
                edge = self._neighbours(edge) & allowed - area
                area |= edge
            found = self.wrong(area)
            if found is not None and (like is None or found.is_like(like)):
                return self.within(area, found)
            if not edge or (most is not None and len(area) > most):
                return None
            steps *= 2
        return None

    def _neighbours(self, nodes: Iterable[int]) -> set[int]:
        index = self._pieces.index
        found: set[int] = set()
        for node in nodes:
            found.update(index.producer[tensor] for tensor in index.node_reads[node] if tensor in index.producer)
            for tensor in index.node_writes[node]:
                found.update(index.consumers.get(tensor, ()))
        return found

    def within(self, nodes: Iterable[int], found: Wrong) -> Group:
        """The few of some nodes that are wrong in the same way together."""
        order = neighbourhood_order(self._pieces.index, sorted(nodes))
        few_nodes = tuple(sorted(minimized(order, lambda some: self._is_wrong(some, found))))
        last = self.wrong(few_nodes) or found
        rate = self._rate(few_nodes, last)
        if rate is not None and self._each == 1:  # it is noticed only now: what looked right may have been luck
            self._each = RUNS_IF_FLAKY
            self._known.clear()
            return self.within(nodes, found)
        index = self._pieces.index
        return Group(
            few_nodes,
            tuple(index.nodes[node].label for node in few_nodes),
            tuple(index.names[tensor] for tensor in self._pieces.fed(few_nodes)),
            tuple(index.names[tensor] for tensor in self._pieces.ends(few_nodes)),
            last.error,
            last.failure,
            self._hides(few_nodes, last),
            last.noise.ratio if last.noise is not None else None,
            rate,
        )

    def _rate(self, nodes: tuple[int, ...], found: Wrong) -> Rate | None:
        """In how many runs a group is wrong; None if in all of them."""
        closed = self._pieces.closed(nodes) or nodes
        is_costly = found.failure is not None and self._each == 1  # a new process for each run
        runs = RUNS_TO_BE_SURE if is_costly else RUNS_IF_FLAKY
        told = (self._run_once(closed, self._pieces.ends(closed)) for _ in range(runs - (self._each == 1)))
        wrong = sum(one is not None and one.is_like(found) for one in told) + (self._each == 1)
        return Rate(max(wrong, 1), runs) if wrong < runs else None

    def _is_wrong(self, nodes: Sequence[int], like: Wrong) -> bool:
        found = self.wrong(nodes)
        return found is not None and found.is_like(like)

    def _hides(self, nodes: tuple[int, ...], found: Wrong) -> bool | None:
        """Whether a group is right when the tensors inside it are marked."""
        closed = self._pieces.closed(nodes) or nodes
        ends = self._pieces.ends(closed)
        inner = [
            tensor
            for node in nodes
            for tensor in self._pieces.recorded_writes(node)
            if tensor not in ends and tensor in self._pieces.index.consumers
        ]
        if not inner:
            return None
        marked = self._run(closed, [*ends, *inner])
        return marked is None or not marked.is_like(found)
