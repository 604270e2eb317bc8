"""Measures the suspect's errors: in the whole model, in tensors marked as outputs, and in isolated layers; and whether
they are rounding.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from biopsy import errors, events
from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.index import Node
from biopsy.questions.layers.findings import Failure, LayerPiece, MarkingEffect, Rate, TensorError, failure_of
from biopsy.questions.layers.question import Question, origins_of, worst
from biopsy.questions.layers.recorded import (
    NonFinite,
    RecordedModel,
    ReferenceValues,
    Runs,
    by_halves,
    non_finite,
)
from biopsy.questions.layers.subgraphs import Subgraph, Subgraphs, batches, run_in_batches
from biopsy.search.subset import minimized
from biopsy.tensors.recording import Request, plan
from biopsy.tensors.results import Array, release, same_values

RUNS_TO_BE_SURE = 3
"""Wrong runs, one after the other, after which a result is taken to be always wrong."""

RUNS_IF_FLAKY = 10
"""Runs of everything in a flaky suspect: what is wrong in 40% of runs is missed in less than 1 of 100 cases."""

_PATIENCE = 5.0
"""Seconds after which a right model is not run any more."""

_MOST_ROUNDING_JUDGED = 20
"""Layers whose errors are compared with rounding, the worst first."""

_MOST_TRIES = 200
"""Runs in the search for the tensors that hide a failure."""


@dataclass(kw_only=True)
class WholeModel:
    """Runs the whole model in the suspect, as it is and with tensors marked as outputs.

    ``outputs`` are the errors of the model's outputs, ``failure`` is set if the suspect cannot run it. ``is_flaky``:
    outputs differ from run to run. ``failure_rate`` is set if only some runs are wrong or fail; ``outputs`` and
    ``failure`` are then those of the worst run.

    ``propagated`` are the errors of marked tensors, ``non_finite`` their NaN and infinities. ``effects``: outputs
    changed by marking, with all tensors of the batch until ``narrow_effects``. ``unmarkable``: tensors that the suspect
    cannot give.
    """

    question: Question
    recorded: RecordedModel
    suspect: Worker
    listener: events.Listener
    outputs: dict[str, TensorError] = field(default_factory=dict)
    failure: Failure | None = None
    is_flaky: bool = False
    failure_rate: Rate | None = None
    propagated: dict[str, TensorError] = field(default_factory=dict)
    non_finite: dict[str, NonFinite] = field(default_factory=dict)
    effects: list[MarkingEffect] = field(default_factory=list)
    unmarkable: list[str] = field(default_factory=list)
    _first_run: Runs = ()

    @property
    def is_wrong(self) -> bool:
        """Whether the suspect fails, or an output is out of tolerance."""
        return self.failure is not None or not all(error.passed for error in self.outputs.values())

    def error_of(self, node: Node) -> TensorError | None:
        """The error of a layer's worst marked output; None if none was measured."""
        names = (self.question.index.names[tensor] for tensor in node.writes)
        measured = [self.propagated[name] for name in names if name in self.propagated]
        return worst(measured) if measured else None

    def run(self) -> None:
        """Run the model as it is, several times to notice flakiness; after a timeout only once.

        What is right is run more often, while that takes little time, since it may be right by luck. If the suspect
        cannot run it, that is ``failure``, not an exception.
        """
        started, number, wrong = time.monotonic(), 0, 0
        while number < RUNS_TO_BE_SURE or (
            not wrong and number < RUNS_IF_FLAKY and time.monotonic() - started < _PATIENCE
        ):
            is_late = self.failure is not None and self.failure.kind == "Timeout"
            wrong += is_late or self._run_is_wrong(number)
            number += 1
        if 0 < wrong < number:
            self.is_flaky, self.failure_rate = True, Rate(wrong, number)

    def _run_is_wrong(self, number: int) -> bool:
        """Run the model; returns whether it is wrong or fails."""
        try:
            runs = self._run()
        except errors.EngineFailure as failure:
            self.failure = failure_of(failure)
            return True
        self._first_run = self._first_run or runs
        is_right = True
        for name in runs[0] if runs else ():
            expected = self.recorded.outputs.values(name)
            if expected is not None:
                error = self._error(name, runs, expected)
                self.outputs[name] = worst([self.outputs.get(name, error), error])
                is_right = is_right and error.passed
        self.is_flaky = self.is_flaky or (number > 0 and self._differs(runs))
        return not is_right

    def _run(self, marked: Iterable[str] | None = None) -> list[dict[str, Array]]:
        """Run with some tensors marked as outputs. Raises what ``Worker.run`` raises."""
        names = None if marked is None else list(dict.fromkeys(marked))
        return self.suspect.run(self.question.model, self.recorded.inputs, names)

    def _error(self, name: str, runs: Runs, expected: Sequence[Array] | None = None) -> TensorError:
        """The error of a tensor against ``expected`` values of the reference, else against those recorded marked."""
        expected = self.recorded.expected(name) if expected is None else expected
        return self.question.judge.error(name, [run[name] for run in runs], expected, self.recorded.types.get(name))

    def _agree(self, name: str, runs: Runs, others: Runs) -> bool:
        """Whether a tensor has the same values within the tolerances in two runs of the suspect."""
        values, expected = ([run[name] for run in each] for each in (runs, others))
        return self.question.judge.error(name, values, expected).passed

    def _differs(self, runs: Runs) -> bool:
        """Whether an output is out of tolerance against the first run."""
        return not all(self._agree(name, runs, self._first_run) for name in self.outputs)

    @cached_property
    def _is_steady(self) -> bool:
        """Whether further runs give the same outputs within the tolerances."""
        return not any(self._differs(self._run()) for _ in range(RUNS_TO_BE_SURE))

    def measure(self, names: Sequence[str]) -> None:
        """Mark and measure tensors, with at most the question's ``limit`` of bytes at a time."""
        computed = self.recorded.computed
        samples = max(computed.count, 1)
        sizes = {name: computed.size(name) // samples for name in names}
        own = [name for name in self.outputs if name in sizes]
        limit = max(self.question.limit // samples, 1)
        request = Request(runner=0, names=names, sizes=sizes, own=own, iterations=samples, limit=limit)
        batched, shared = plan(request)
        shown = [name for name in shared if name in self.outputs]
        for number, batch in enumerate(batched, 1):
            self._measure_batch(batch, shown)
            self.listener(events.Measured("whole", number, len(batched)))

    def _measure_batch(self, names: Sequence[str], shown: Sequence[str]) -> None:
        """Measure one batch; if the suspect fails with it marked, its halves."""
        for part, runs in by_halves(names, lambda some: self._run([*some, *shown])):
            if isinstance(runs, errors.BiopsyError):
                self.unmarkable += part
                continue
            for name in part:
                if all(name in run for run in runs):
                    lost = non_finite([run[name] for run in runs])
                    if lost is not None:
                        self.non_finite[name] = lost
                    self.propagated[name] = self._error(name, runs)
            known = {effect.output for effect in self.effects}
            for name in shown:
                if name not in known and all(name in run for run in runs):
                    self._observe(name, runs, part)

    def _observe(self, output: str, runs: Runs, names: Sequence[str]) -> None:
        """Compare an output with its value when nothing is marked."""
        marked, unmarked = [run[output] for run in runs], [run[output] for run in self._first_run]
        if all(map(same_values, marked, unmarked)) or self._agree(output, runs, self._first_run):
            release(*marked, *unmarked)
            return
        self.is_flaky = self.is_flaky or not self._is_steady
        if self.is_flaky:
            return
        before, after = self.outputs[output].passed, self._error(output, runs).passed
        changed: Literal["gone", "appears"] = "gone" if after else "appears"
        self.effects.append(MarkingEffect("differs" if before == after else changed, output, tuple(names)))

    def narrow_effects(self, first: Sequence[str]) -> None:
        """Reduce each "gone" effect to few tensors that hide the failure, if possible to one of ``first``."""
        for place, effect in enumerate(self.effects):
            if effect.change == "gone":
                self.effects[place] = replace(effect, tensors=self._hiding_tensors(effect, first))

    def _hiding_tensors(self, effect: MarkingEffect, first: Sequence[str]) -> tuple[str, ...]:
        tries, output = itertools.count(1), effect.output

        def hide(some: Sequence[str]) -> bool:
            number = next(tries)
            self.listener(events.Measured("marks", number, _MOST_TRIES))
            if number > _MOST_TRIES:
                return False
            try:
                return self._error(output, self._run([*some, output])).passed
            except CANNOT_RUN:
                return False

        single = next((name for name in first if name in effect.tensors and hide([name])), None)
        if single is not None:
            return (single,)
        return tuple(minimized([name for name in effect.tensors if name != output], hide))


@dataclass(frozen=True, kw_only=True)
class IsolatedResult:
    """The result of one layer: the error of its worst output, or the engine's failure; of several runs, the worst.

    ``non_finite`` has the NaN and infinities of outputs by name. ``flaky`` is set if only some runs were wrong.
    ``differs``: it differs from what the reference recorded in the whole model; only this, judged alike in all runs,
    shows flakiness. ``rounding_ratio`` is its error divided by plain float32's on the same values; see
    ``IsolatedLayers.judge_rounding``. ``is_of_model``: see ``RoundingVerdict``.
    """

    error: TensorError | None = None
    failure: Failure | None = None
    non_finite: tuple[tuple[str, NonFinite], ...] = ()
    flaky: Rate | None = None
    differs: bool = True
    rounding_ratio: float | None = None
    is_of_model: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether the layer is wrong, or the engine fails at it."""
        return self.failure is not None or (self.error is not None and not self.error.passed)

    @property
    def is_wrong_in_value(self) -> bool:
        """Whether values are wrong, not a type or a shape, so that it may be rounding."""
        return self.is_wrong and self.failure is None and self.error is not None and not self.error.form

    @property
    def rank(self) -> tuple[bool, tuple[bool, float, float]]:
        """Greater for what is worse."""
        return self.failure is not None, self.error.rank if self.error is not None else (False, 0.0, 0.0)


@dataclass(kw_only=True)
class IsolatedLayers:
    """Runs isolated layers in the suspect. ``results``, by the node's number, grow batch by batch.

    A wrong layer is run again before it counts. ``limit``: bytes of tensors in memory at a time. ``impossible``: nodes
    that no engine can run in isolation, with the reason. ``pieces``: the layers that run together with a node because
    the tensors between have no recorded value. ``is_flaky``: runs disagree.
    """

    subgraphs: Subgraphs
    suspect: Worker
    reference: ReferenceValues
    limit: int
    listener: events.Listener
    results: dict[int, IsolatedResult] = field(default_factory=dict)
    impossible: dict[int, str] = field(default_factory=dict)
    pieces: dict[int, LayerPiece] = field(default_factory=dict)
    is_flaky: bool = False

    def run(self, nodes: Sequence[int], *, flaky: bool = False) -> None:
        """Run layers, and wrong ones again. With ``flaky``, or if runs disagree, run all of them again."""
        layers = {layer.layers[0]: layer for layer in self._subgraphs_of(nodes)}
        runs = {node: [result] for node, result in self._run_once(layers.values())}

        def repeat(some: Iterable[int]) -> None:
            for node, result in self._run_once([layers[node] for node in some], repeated=True):
                runs[node].append(result)

        if not flaky:
            repeat([node for node, results in runs.items() if results[0].is_wrong])
            # A layer at which the engine failed twice is not run a third time.
            for done in range(2, RUNS_TO_BE_SURE):
                fail = {node for node, results in runs.items() if all(result.failure for result in results)}
                repeat([node for node in runs if len(runs[node]) == done and node not in fail])
            self.is_flaky = any(len({result.differs for result in results}) > 1 for results in runs.values())
        if flaky or self.is_flaky:
            for done in range(1, RUNS_IF_FLAKY):
                repeat([node for node in runs if len(runs[node]) == done])
        self.results = {node: _combined(results) for node, results in runs.items()}

    def judge_rounding(self, rounding: RoundingJudge) -> None:
        """Compare the errors of the worst layers with those of plain float32 on the same values."""
        wrong = [(result.rank, node) for node, result in self.results.items() if result.is_wrong_in_value]
        for layer in self._subgraphs_of([node for _, node in sorted(wrong, reverse=True)[:_MOST_ROUNDING_JUDGED]]):
            model = self.subgraphs.model(layer.nodes, layer.outputs)
            with contextlib.suppress(*CANNOT_RUN):
                runs = self.suspect.run(model, self.subgraphs.recorded.fed.path)
                judged = rounding.judge(model, self.subgraphs.names(layer.outputs), runs)
                if judged is not None:
                    node = layer.layers[0]
                    self.results[node] = replace(
                        self.results[node], rounding_ratio=judged.noise.ratio, is_of_model=judged.is_of_model
                    )

    def _run_once(self, layers: Collection[Subgraph], *, repeated: bool = False) -> list[tuple[int, IsolatedResult]]:
        """Run layers once. ``repeated``: always judge them by the reference's own run on the same values."""
        results: list[tuple[int, IsolatedResult]] = []

        def expected(model: ModelInput) -> Runs | None:
            return self.reference.run_subgraph(model, always=repeated)

        batched = batches(layers, self.limit)
        for layer, runs, values in run_in_batches(self.subgraphs, self.suspect, batched, expected):
            (node,) = layer.layers
            if isinstance(runs, errors.TooMuchMemory):
                self.impossible.setdefault(node, runs.message)
                continue
            result = self._judged(layer, runs, values)
            results.append((node, result))
            if not repeated:
                self.results[node] = result
            self.listener(events.Measured("repeated" if repeated else "isolated", len(results), len(layers)))
        return results

    def _subgraphs_of(self, nodes: Sequence[int]) -> Iterable[Subgraph]:
        for node in nodes:
            closed, outputs = self.subgraphs.closed([node]), self.subgraphs.recorded_writes(node)
            if closed is None:
                self.impossible[node] = "it needs an input that has no value"
            elif not outputs:
                self.impossible[node] = "its outputs were not recorded"
            else:
                nodes, index = self.subgraphs.layers(closed), self.subgraphs.index
                if nodes != (node,) and node not in self.pieces:
                    self.pieces[node] = LayerPiece(
                        nodes=nodes,
                        labels=tuple(index.nodes[number].label for number in nodes),
                        inputs=tuple(self.subgraphs.names(self.subgraphs.inputs(closed))),
                        origins=origins_of(index, nodes),
                    )
                yield Subgraph(self.subgraphs, (node,), closed, outputs)

    def _judged(self, layer: Subgraph, runs: Runs | errors.BiopsyError, expected: Runs | None) -> IsolatedResult:
        if isinstance(runs, errors.BiopsyError):
            return IsolatedResult(failure=failure_of(runs))
        names = self.subgraphs.names(layer.outputs)
        measured = self.reference.errors(names, runs, expected)
        if not measured:
            return IsolatedResult(failure=Failure("run", "NoOutput", "it gives no tensor"))
        present = {name: [run[name] for run in runs] for name in names if all(name in run for run in runs)}
        lost = tuple((name, count) for name, values in present.items() if (count := non_finite(values)) is not None)
        error = worst(measured)
        recorded = error if expected is None else worst(self.reference.errors(names, runs, None))
        differs = not (error if self.subgraphs.recorded.is_rounded else recorded).passed
        return IsolatedResult(error=error, non_finite=lost, differs=differs)


def _combined(runs: Sequence[IsolatedResult]) -> IsolatedResult:
    """The worst of several runs of one layer. In a steady engine, only repeated runs count (see ``_run_once``)."""
    is_steady = len({result.differs for result in runs}) == 1
    judged = (runs[1:] if is_steady else ()) or runs
    wrong = sum(result.is_wrong for result in judged)
    flaky = Rate(wrong, len(judged)) if 0 < wrong < len(judged) else None
    return replace(max(judged, key=lambda result: result.rank), flaky=flaky)


@dataclass(frozen=True)
class RoundingVerdict:
    """An error compared with rounding: the suspect's, or that of the golden values if that is greater.

    ``is_of_model``: the suspect computes what the model says, and the reference, or the golden values, something else.
    """

    noise: NoiseComparison
    is_of_model: bool = False


class RoundingJudge:
    """Judges whether errors of subgraphs are rounding, as ``biopsy run --compare-with noise`` does.

    Layers that cancel or amplify enlarge differences in rounding, for which neither a layer nor a fusion is to blame.
    ``recorded`` has the values to feed, ``scratch`` is a folder for temporary files; ``timeout`` is in seconds per run.
    ``reference`` is used where it runs the engine that is needed, and its limit of memory. Use it in a ``with``, which
    closes its workers.
    """

    def __init__(self, recorded: RecordedModel, reference: Worker, scratch: Path, timeout: float | None) -> None:
        def worker(engine: str) -> Worker:
            is_there = engine == reference.engine
            return reference if is_there else Worker(engine, scratch, timeout, memory=reference.memory)

        self._recorded = recorded
        self._exact = worker(EXACT)
        self._plain = [worker(engine) for engine in PLAIN]

    def __enter__(self) -> RoundingJudge:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self._exact, *self._plain):
            worker.close()

    def judge(self, model: ModelInput, names: Iterable[str], runs: Runs) -> RoundingVerdict | None:
        """The verdict on the worst of the outputs ``names`` of a subgraph, for which the suspect gave ``runs``.

        What it is compared with is judged too: golden values may be of another model, and a reference may be wrong.
        None if the exact or the plain evaluator cannot run the subgraph, or an output is missing.
        """
        exact, plain = self._run(self._exact, model), None
        if exact is not None:
            plain = next((given for worker in self._plain if (given := self._run(worker, model)) is not None), None)
        if exact is None or plain is None:
            return None
        wanted = tuple(names)
        noise = _worst(wanted, [[run.get(name) for run in runs] for name in wanted], plain, exact)
        if noise is None:
            return None
        known = all(name in self._recorded for name in wanted)  # a reference may refuse to give a tensor
        expected = _worst(wanted, [self._recorded.expected(name) for name in wanted], plain, exact) if known else None
        if expected is None or (expected.passed, -expected.ratio) >= (noise.passed, -noise.ratio):
            return RoundingVerdict(noise)
        is_of_model = noise.passed and expected.verdict == "bug"
        return RoundingVerdict(expected if self._recorded.is_golden else noise, is_of_model=is_of_model)

    def _run(self, worker: Worker, model: ModelInput) -> Runs | None:
        with contextlib.suppress(*CANNOT_RUN):
            return worker.run(model, self._recorded.fed.path)
        return None


def _worst(
    names: Sequence[str], values: Sequence[Sequence[Array | None]], plain: Runs, exact: Runs
) -> NoiseComparison | None:
    """The worst verdict on some tensors with ``values`` per sample; None if a value is missing."""
    judged = []
    for name, samples in zip(names, values, strict=True):
        for number, (value, plain_run, exact_run) in enumerate(zip(samples, plain, exact, strict=False)):
            if value is None or name not in plain_run or name not in exact_run:
                return None
            judged.append(judge_noise(name, number, value, plain_run[name], exact_run[name]))
    return max(judged, key=lambda noise: (not noise.passed, noise.ratio), default=None)
