"""Errors that layers introduce: each alone, fed with recorded values; many at once where nothing connects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.engines.worker import Worker
from biopsy.evidence.judge import Judge, Odd, odd, worst
from biopsy.evidence.layers import Failure, TensorError
from biopsy.evidence.pieces import Part, Pieces, batches
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


def run_apart(
    pieces: Pieces,
    worker: Worker,
    parts: Iterable[Part],
    limit: int,
    keep: Callable[[Part, Sequence[Mapping[str, Array]] | errors.BiopsyError], None],
) -> None:
    """Run parts of the model, many of them in one model where nothing connects them; see ``batches`` for ``limit``.

    ``keep`` is given each part with its outputs per sample, or with what the engine raised. Where it fails at a batch,
    halves of it are run, down to the parts that it fails at.
    """
    waiting = list(reversed(batches(parts, limit)))
    while waiting:
        batch = waiting.pop()
        nodes = tuple(sorted({node for part in batch for node in part.nodes}))
        outputs = [tensor for part in batch for tensor in part.outputs]
        try:
            runs = worker.run(pieces.model(nodes, outputs), pieces.recorded.path)
        except CANNOT_RUN as error:
            if len(batch) == 1:
                keep(batch[0], error)
            else:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
            continue
        for part in batch:
            keep(part, runs)


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

    def run(self, nodes: Sequence[int], limit: int) -> None:
        """Run layers; at most ``limit`` bytes of tensors are in memory at a time."""
        layers = list(self._layers(nodes))

        def keep(layer: Part, runs: Sequence[Mapping[str, Array]] | errors.BiopsyError) -> None:
            if isinstance(runs, errors.BiopsyError):
                found = Introduced(failure=failure_of(runs))
            else:
                found = self._judged(layer, runs)
            self.found[layer.about[0]] = found
            self._listener(events.Measured("alone", len(self.found), len(layers)))

        run_apart(self._pieces, self._worker, layers, limit, keep)

    def _layers(self, nodes: Sequence[int]) -> Iterable[Part]:
        for node in nodes:
            closed, outputs = self._pieces.closed([node]), self._pieces.recorded_writes(node)
            if closed is None:
                self.impossible[node] = "it needs an input that has no value"
            elif not outputs:
                self.impossible[node] = "its outputs were not recorded"
            else:
                yield Part(self._pieces, (node,), closed, outputs)

    def _judged(self, layer: Part, runs: Sequence[Mapping[str, Array]]) -> Introduced:
        recorded = self._pieces.recorded
        names = [self._pieces.index.names[tensor] for tensor in layer.outputs]
        given = {name: [run[name] for run in runs] for name in names if all(name in run for run in runs)}
        if not given:
            return Introduced(failure=Failure("run", "NoOutput", "it gives no tensor"))
        lost = tuple((name, found) for name, values in given.items() if (found := odd(values)) is not None)
        return Introduced(
            worst(self._judge.error(name, values, recorded.values(name)) for name, values in given.items()), odd=lost
        )
