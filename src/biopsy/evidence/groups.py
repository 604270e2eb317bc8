"""Cuts where observing does not help: layers that are right one by one, and wrong where the engine runs them together.

Pieces of the graph are run unmarked, fed with recorded values, and only their ends are looked at. Around a layer that
something points to, the neighbourhood grows until the error shows; then what is not needed for it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.engines.worker import Worker
from biopsy.evidence.alone import CANNOT_RUN, failure_of, run_apart
from biopsy.evidence.few import few
from biopsy.evidence.judge import Judge, worst
from biopsy.evidence.layers import Failure, Group, TensorError
from biopsy.evidence.pieces import Part, Pieces
from biopsy.reduction.order import neighbourhood_order
from biopsy.tensors.results import Array


@dataclass(frozen=True)
class Wrong:
    """How a piece is wrong: by the error of its worst end, or because the engine fails at it."""

    error: TensorError | None = None
    failure: Failure | None = None

    def is_like(self, other: Wrong) -> bool:
        """Whether two pieces are wrong in the same way."""
        if self.failure is None or other.failure is None:
            return self.failure is other.failure
        return (self.failure.stage, self.failure.kind) == (other.failure.stage, other.failure.kind)


class Groups:
    """Looks for groups of layers that are wrong together, in at most ``budget`` runs of pieces."""

    def __init__(
        self, pieces: Pieces, worker: Worker, judge: Judge, listener: events.Listener, budget: int = 400
    ) -> None:
        self._pieces = pieces
        self._worker = worker
        self._judge = judge
        self._listener = listener
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

        def keep(part: Part, runs: Sequence[Mapping[str, Array]] | errors.BiopsyError) -> None:
            self._listener(events.Measured("windows", next(done), len(parts)))
            wrong = None if isinstance(runs, errors.BiopsyError) else self._judged(part.outputs, runs)
            if wrong is not None and wrong.error is not None:
                found.append((-wrong.error.times, part.about))

        run_apart(self._pieces, self._worker, parts, limit, keep)
        return [about for _, about in sorted(found)]

    def _run(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> Wrong | None:
        if not outputs:
            return None
        self._runs += 1
        self._listener(events.Measured("groups", self._runs, self._budget))
        try:
            runs = self._worker.run(self._pieces.model(nodes, outputs), self._pieces.recorded.path)
        except errors.EngineFailure as error:
            return Wrong(failure=failure_of(error))
        except CANNOT_RUN:
            return None
        return self._judged(outputs, runs)

    def _judged(self, outputs: Sequence[int], runs: Sequence[Mapping[str, Array]]) -> Wrong | None:
        """How the ends of a piece are wrong; None if they are right."""
        names = [self._pieces.index.names[tensor] for tensor in outputs]
        found = [
            self._judge.error(name, [run[name] for run in runs], self._pieces.recorded.values(name))
            for name in names
            if all(name in run for run in runs)
        ]
        bad = [error for error in found if not error.passed]
        return Wrong(worst(bad)) if bad else None

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
        few_nodes = tuple(sorted(few(order, lambda some: self._is_wrong(some, found))))
        last = self.wrong(few_nodes) or found
        index = self._pieces.index
        return Group(
            few_nodes,
            tuple(index.nodes[node].label for node in few_nodes),
            tuple(index.names[tensor] for tensor in self._pieces.fed(few_nodes)),
            tuple(index.names[tensor] for tensor in self._pieces.ends(few_nodes)),
            last.error,
            last.failure,
            self._hides(few_nodes, last),
        )

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
