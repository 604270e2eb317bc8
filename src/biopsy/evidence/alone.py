"""Errors that layers introduce: each alone, fed with recorded values; many at once where nothing connects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.engines.worker import Worker
from biopsy.evidence.judge import Judge, Odd, odd, worst
from biopsy.evidence.layers import Failure, TensorError
from biopsy.evidence.pieces import Alone, Pieces, batches
from biopsy.tensors.results import Array

CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
"""What says that one piece cannot be run, and nothing about others."""


@dataclass(frozen=True)
class Introduced:
    """What came of one layer: the error of its worst output, or how the engine failed at it; NaN in its outputs."""

    error: TensorError | None = None
    failure: Failure | None = None
    odd: tuple[tuple[str, Odd], ...] = ()


def failure_of(error: errors.BiopsyError) -> Failure:
    """A failure as a finding; what is no failure of an engine counts as one of loading."""
    if isinstance(error, errors.EngineFailure):
        return Failure(error.stage, error.kind, error.message)
    return Failure("load", type(error).__name__, error.message)


class Alones:
    """Runs layers alone in the suspect. ``found`` grows batch by batch: node -> what came of it."""

    def __init__(self, pieces: Pieces, worker: Worker, judge: Judge, listener: events.Listener) -> None:
        self.found: dict[int, Introduced] = {}
        self.impossible: dict[int, str] = {}
        """Nodes that cannot be run alone whatever the engine, and why."""
        self._pieces = pieces
        self._worker = worker
        self._judge = judge
        self._listener = listener
        self._total = 0

    def run(self, nodes: Sequence[int], limit: int) -> None:
        """Run layers; at most ``limit`` bytes of tensors are in memory at a time."""
        layers = list(self._layers(nodes))
        self._total = len(layers)
        for batch in batches(layers, limit):
            self._run(batch)

    def _layers(self, nodes: Sequence[int]) -> Iterable[Alone]:
        for node in nodes:
            closed = self._pieces.closed([node])
            if closed is None:
                self.impossible[node] = "it needs an input that has no value"
            elif not self._pieces.recorded_writes(node):
                self.impossible[node] = "its outputs were not recorded"
            else:
                yield Alone(self._pieces, node, closed)

    def _run(self, batch: Sequence[Alone]) -> None:
        """Run a batch; where the engine fails, its halves, down to the layers that it fails at."""
        nodes = tuple(sorted({node for layer in batch for node in layer.nodes}))
        outputs = [tensor for layer in batch for tensor in layer.outputs]
        try:
            runs = self._worker.run(self._pieces.model(nodes, outputs), self._pieces.recorded.path)
        except CANNOT_RUN as error:
            if len(batch) == 1:
                self._keep(batch[0], Introduced(failure=failure_of(error)))
                return
            half = len(batch) // 2
            self._run(batch[:half])
            self._run(batch[half:])
            return
        for layer in batch:
            self._keep(layer, self._judged(layer, runs))

    def _judged(self, layer: Alone, runs: Sequence[dict[str, Array]]) -> Introduced:
        recorded = self._pieces.recorded
        names = [self._pieces.index.names[tensor] for tensor in layer.outputs]
        given = [name for name in names if all(name in run for run in runs)]
        if not given:
            return Introduced(failure=Failure("run", "NoOutput", "it gives no tensor"))
        found = []
        for name in given:
            values = [run[name] for run in runs]
            if (lost := odd(values)) is not None:
                found.append((name, lost))
        errors_ = [self._judge.error(name, [run[name] for run in runs], recorded.values(name)) for name in given]
        return Introduced(worst(errors_), odd=tuple(found))

    def _keep(self, layer: Alone, found: Introduced) -> None:
        self.found[layer.node] = found
        self._listener(events.Measured("alone", len(self.found), self._total))
