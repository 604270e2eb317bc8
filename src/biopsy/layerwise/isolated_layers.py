"""Errors that layers introduce: each alone, fed with recorded values; many at once where nothing connects them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import Failure, Rate, TensorError
from biopsy.layerwise.rounding import RoundingJudge
from biopsy.layerwise.subgraphs import Part, Pieces, batches
from biopsy.layerwise.tensor_errors import Odd, odd, worst
from biopsy.layerwise.truth import CANNOT_RUN, Runs, Truth

RUNS_TO_BE_SURE = 3
"""Runs after which something is believed to be wrong always, if it was wrong each time."""

_MOST_WEIGHED = 20
"""Layers whose errors are held against rounding, the worst first: more than a person looks at."""

RUNS_IF_FLAKY = 10
"""Runs of everything in a suspect that wavers: what is wrong in 4 of 10 runs is missed in less than 1 of 100 cases."""


@dataclass(frozen=True)
class Introduced:
    """What came of one layer: the error of its worst output, or how the engine failed at it; NaN in its outputs.

    Of several runs the worst counts; ``flaky`` says in how many it was wrong, if not in all or none. ``differs``: it is
    wrong by what the reference recorded in the whole model; only runs judged alike tell whether an engine wavers.
    ``times_rounding``: its error by that of plain float32 on the same values, where that was asked (``weigh``).
    """

    error: TensorError | None = None
    failure: Failure | None = None
    odd: tuple[tuple[str, Odd], ...] = ()
    flaky: Rate | None = None
    differs: bool = True
    times_rounding: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether the engine errs or fails there."""
        return self.failure is not None or (self.error is not None and not self.error.passed)

    @property
    def rank(self) -> tuple[bool, tuple[bool, float, float]]:
        """Greater for what is worse."""
        return self.failure is not None, self.error.rank if self.error is not None else (False, 0.0, 0.0)


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
    keep: Callable[[Part, Runs | errors.BiopsyError, Runs | None], None],
    truth: Callable[[ModelInput], Runs | None],
) -> None:
    """Run parts of the model, many of them in one model where nothing connects them; see ``batches`` for ``limit``.

    ``keep`` is given each part with its outputs per sample, or with what the engine raised, and with what ``truth``
    gives for the model that it was run in. Where the engine fails at a batch, halves of it are run, down to the parts
    that it fails at.
    """
    waiting = list(reversed(batches(parts, limit)))
    while waiting:
        batch = waiting.pop()
        nodes = tuple(sorted({node for part in batch for node in part.nodes}))
        model = pieces.model(nodes, [tensor for part in batch for tensor in part.outputs])
        try:
            runs = worker.run(model, pieces.recorded.path)
        except CANNOT_RUN as error:
            if len(batch) == 1:
                keep(batch[0], error, None)
            else:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
            continue
        expected = truth(model)
        for part in batch:
            keep(part, runs, expected)


class Alones:
    """Runs layers alone in the suspect. ``found`` grows batch by batch: node -> what came of it.

    Nothing is said of a layer that was wrong only once. ``is_flaky``: the suspect does not always say the same.
    """

    def __init__(self, pieces: Pieces, worker: Worker, truth: Truth, listener: events.Listener) -> None:
        self.found: dict[int, Introduced] = {}
        self.impossible: dict[int, str] = {}
        """Nodes that cannot be run alone whatever the engine, and why."""
        self.is_flaky = False
        self._pieces = pieces
        self._worker = worker
        self._truth = truth
        self._listener = listener

    def run(self, nodes: Sequence[int], limit: int, *, flaky: bool = False) -> None:
        """Run layers; at most ``limit`` bytes of tensors are in memory at a time.

        What is wrong is run again before it is believed. ``flaky``, or if they do not agree: everything is.
        """
        layers = list(self._layers(nodes))
        said = {layer.about[0]: [one] for layer, one in self._round(layers, limit)}
        if not flaky:
            self._run_again([layer for layer in layers if said[layer.about[0]][0].is_wrong], said, limit)
            self.is_flaky = any(len({one.differs for one in runs}) > 1 for runs in said.values())
        if flaky or self.is_flaky:
            self._run_again(layers, said, limit, RUNS_IF_FLAKY)
        self.found = {node: _summed(runs) for node, runs in said.items()}

    def weigh(self, rounding: RoundingJudge) -> None:
        """Hold the errors of the worst layers against what plain float32 errs by on the same values."""
        wrong = [(one.rank, node) for node, one in self.found.items() if one.is_wrong and one.failure is None]
        for part in self._layers([node for _, node in sorted(wrong, reverse=True)[:_MOST_WEIGHED]]):
            model = self._pieces.model(part.nodes, part.outputs)
            names = [self._pieces.index.names[tensor] for tensor in part.outputs]
            with contextlib.suppress(*CANNOT_RUN):
                noise = rounding.judge(model, names, self._worker.run(model, self._pieces.recorded.path))
                if noise is not None:
                    node = part.about[0]
                    self.found[node] = replace(self.found[node], times_rounding=noise.ratio)

    def _run_again(
        self, layers: Sequence[Part], said: dict[int, list[Introduced]], limit: int, runs: int = RUNS_TO_BE_SURE
    ) -> None:
        """Run layers until each was run so often; those that the engine fails at steadily only twice."""
        for done in range(1, runs):
            due = [layer for layer in layers if len(said[layer.about[0]]) == done]
            if runs == RUNS_TO_BE_SURE and done > 1:
                due = [layer for layer in due if any(one.failure is None for one in said[layer.about[0]])]
            for layer, one in self._round(due, limit, again=True):
                said[layer.about[0]].append(one)

    def _round(self, layers: Sequence[Part], limit: int, *, again: bool = False) -> list[tuple[Part, Introduced]]:
        """Run layers once. ``again``: judge them by the reference on the very same values, whatever it computes in."""
        told: list[tuple[Part, Introduced]] = []

        def keep(layer: Part, runs: Runs | errors.BiopsyError, expected: Runs | None) -> None:
            if isinstance(runs, errors.BiopsyError):
                found = Introduced(failure=failure_of(runs))
            else:
                found = self._judged(layer, runs, expected)
            told.append((layer, found))
            if not again:
                self.found[layer.about[0]] = found
            self._listener(events.Measured("again" if again else "alone", len(told), len(layers)))

        run_apart(self._pieces, self._worker, layers, limit, keep, lambda model: self._truth.of(model, always=again))
        return told

    def _layers(self, nodes: Sequence[int]) -> Iterable[Part]:
        for node in nodes:
            closed, outputs = self._pieces.closed([node]), self._pieces.recorded_writes(node)
            if closed is None:
                self.impossible[node] = "it needs an input that has no value"
            elif not outputs:
                self.impossible[node] = "its outputs were not recorded"
            else:
                yield Part(self._pieces, (node,), closed, outputs)

    def _judged(self, layer: Part, runs: Runs, expected: Runs | None) -> Introduced:
        names = [self._pieces.index.names[tensor] for tensor in layer.outputs]
        found = self._truth.errors(names, runs, expected)
        if not found:
            return Introduced(failure=Failure("run", "NoOutput", "it gives no tensor"))
        given = {name: [run[name] for run in runs] for name in names if all(name in run for run in runs)}
        lost = tuple((name, one) for name, values in given.items() if (one := odd(values)) is not None)
        error = worst(found)
        recorded = error if expected is None else worst(self._truth.errors(names, runs, None))
        differs = not (error if self._pieces.recorded.is_rounded else recorded).passed
        return Introduced(error, odd=lost, differs=differs)


def _summed(runs: Sequence[Introduced]) -> Introduced:
    """What several runs of one layer say; of a steady engine, those count that the reference was asked about."""
    is_steady = len({one.differs for one in runs}) == 1
    judged = (runs[1:] if is_steady else ()) or runs
    wrong = sum(one.is_wrong for one in judged)
    flaky = Rate(wrong, len(judged)) if 0 < wrong < len(judged) else None
    return replace(max(judged, key=lambda one: one.rank), flaky=flaky)
