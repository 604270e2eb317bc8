"""Isolated layers: the errors that each introduces when it is run by itself, and whether that is rounding or a
fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN
from biopsy.engines.worker import Worker
from biopsy.questions.layers.findings import Failure, LayerPiece, Rate, TensorError, failure_of
from biopsy.questions.layers.question import origins_of, worst
from biopsy.questions.layers.recorded import CANNOT_RUN, NonFinite, RecordedModel, ReferenceValues, Runs, non_finite
from biopsy.questions.layers.subgraphs import Subgraph, Subgraphs, batches, run_in_batches
from biopsy.tensors.results import Array

RUNS_TO_BE_SURE = 3
"""Runs after which something is believed to be wrong always, if it was wrong each time."""

RUNS_IF_FLAKY = 10
"""Runs of everything in a flaky suspect: what is wrong in 4 of 10 runs is missed in less than 1 of 100 cases."""

_MOST_WEIGHED = 20
"""Layers whose errors are held against rounding, the worst first: more than a person looks at."""


@dataclass(frozen=True, kw_only=True)
class IsolatedResult:
    """What came of one layer: the error of its worst output, or how the engine failed at it.

    ``non_finite`` counts NaN and infinities in its outputs, by their names. Of several runs the worst counts; ``flaky``
    says in how many it was wrong, if not in all or none. ``differs``: it is wrong by what the reference recorded in the
    whole model; only runs judged alike tell whether an engine is flaky. ``rounding_ratio``: its error by that of plain
    float32 on the same values, where that was asked (``weigh``), and ``is_of_model`` as there.
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
        """Whether the engine errs or fails there."""
        return self.failure is not None or (self.error is not None and not self.error.passed)

    @property
    def rank(self) -> tuple[bool, tuple[bool, float, float]]:
        """Greater for what is worse."""
        return self.failure is not None, self.error.rank if self.error is not None else (False, 0.0, 0.0)


@dataclass(kw_only=True)
class IsolatedLayers:
    """Runs isolated layers in the suspect. ``results`` grow batch by batch: node -> what came of it.

    A layer that was wrong only once is run again before it is believed to be. ``limit``: bytes of tensors in memory at
    a time. ``impossible``: nodes that cannot be run in isolation whatever the engine, and why. ``pieces``: what is run
    as one with a node, where tensors between have no recorded value. ``is_flaky``: the suspect does not always say the
    same.
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
        """Run layers. What is wrong is run again; ``flaky``, or if the runs do not agree: everything is."""
        layers = list(self._layers(nodes))
        runs = {layer.layers[0]: [result] for layer, result in self._round(layers)}
        layers = [layer for layer in layers if layer.layers[0] in runs]

        def repeat(some: Sequence[Subgraph]) -> None:
            for layer, result in self._round(some, repeated=True):
                runs[layer.layers[0]].append(result)

        if not flaky:
            wrong = [layer for layer in layers if runs[layer.layers[0]][0].is_wrong]
            for done in range(1, RUNS_TO_BE_SURE):
                if done > 1:  # layers that the engine fails at each time are run only twice
                    wrong = [layer for layer in wrong if any(not result.failure for result in runs[layer.layers[0]])]
                repeat(wrong)
            self.is_flaky = any(len({result.differs for result in results}) > 1 for results in runs.values())
        if flaky or self.is_flaky:
            for done in range(1, RUNS_IF_FLAKY):
                repeat([layer for layer in layers if len(runs[layer.layers[0]]) == done])
        self.results = {node: _summed(results) for node, results in runs.items()}

    def weigh(self, rounding: RoundingJudge) -> None:
        """Hold the errors of the worst layers against what plain float32 errs by on the same values."""
        wrong = [(result.rank, node) for node, result in self.results.items() if result.is_wrong and not result.failure]
        for layer in self._layers([node for _, node in sorted(wrong, reverse=True)[:_MOST_WEIGHED]]):
            model = self.subgraphs.model(layer.nodes, layer.outputs)
            with contextlib.suppress(*CANNOT_RUN):
                runs = self.suspect.run(model, self.subgraphs.recorded.fed.path)
                judged = rounding.judge(model, self.subgraphs.names(layer.outputs), runs)
                if judged is not None:
                    node = layer.layers[0]
                    self.results[node] = replace(
                        self.results[node], rounding_ratio=judged.noise.ratio, is_of_model=judged.is_of_model
                    )

    def _round(self, layers: Sequence[Subgraph], *, repeated: bool = False) -> list[tuple[Subgraph, IsolatedResult]]:
        """Run layers once. ``repeated``: judge them by the reference on the same values, whatever it computes in."""
        results: list[tuple[Subgraph, IsolatedResult]] = []

        def keep(layer: Subgraph, runs: Runs | errors.BiopsyError, expected: Runs | None) -> None:
            if isinstance(runs, errors.TooMuchMemory):
                self.impossible.setdefault(layer.layers[0], runs.message)
                return
            if isinstance(runs, errors.BiopsyError):
                result = IsolatedResult(failure=failure_of(runs))
            else:
                result = self._judged(layer, runs, expected)
            results.append((layer, result))
            if not repeated:
                self.results[layer.layers[0]] = result
            self.listener(events.Measured("repeated" if repeated else "isolated", len(results), len(layers)))

        run_in_batches(
            self.subgraphs,
            self.suspect,
            batches(layers, self.limit),
            keep,
            lambda model: self.reference.of(model, always=repeated),
        )
        return results

    def _layers(self, nodes: Sequence[int]) -> Iterable[Subgraph]:
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

    def _judged(self, layer: Subgraph, runs: Runs, expected: Runs | None) -> IsolatedResult:
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


def _summed(runs: Sequence[IsolatedResult]) -> IsolatedResult:
    """What several runs of one layer say; of a steady engine, those count that the reference was asked about."""
    is_steady = len({result.differs for result in runs}) == 1
    judged = (runs[1:] if is_steady else ()) or runs
    wrong = sum(result.is_wrong for result in judged)
    flaky = Rate(wrong, len(judged)) if 0 < wrong < len(judged) else None
    return replace(max(judged, key=lambda result: result.rank), flaky=flaky)


# Rounding or a fault: a subgraph that is out of tolerance, held against the error of plain float32 on its values.
#
# The measure is that of ``biopsy run --compare-with noise`` (``comparison.noise``). Layers that cancel or amplify
# make much of the little by which two engines may round differently, and neither a layer nor a fusion is to blame for
# that.


@dataclass(frozen=True)
class RoundingVerdict:
    """An error held against rounding: ``noise`` is that of the suspect, or of the golden values if they are further
    from the exact ones.

    ``is_of_model``: the suspect gives what the model says, and it is the golden values that are of something else.
    """

    noise: NoiseComparison
    is_of_model: bool = False


class RoundingJudge:
    """Runs subgraphs exactly and plainly. Use it in a ``with``: its workers end there.

    ``recorded`` has the values that subgraphs are fed with; ``scratch`` is a folder for transient files.
    ``timeout`` is in seconds per run, ``memory`` in bytes of an engine.
    """

    def __init__(
        self, recorded: RecordedModel, scratch: Path, timeout: float | None = None, memory: int | None = None
    ) -> None:
        self._path = recorded.fed.path
        self._recorded = recorded
        self._exact = Worker(EXACT, scratch, timeout, memory=memory)
        self._plain = [Worker(engine, scratch, timeout, memory=memory) for engine in PLAIN]

    def __enter__(self) -> RoundingJudge:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self._exact, *self._plain):
            worker.close()

    def judge(self, model: ModelInput, names: Iterable[str], runs: Runs) -> RoundingVerdict | None:
        """The verdict on the worst of some outputs of a subgraph, of which the suspect gave ``runs``.

        Golden values are judged too: they may be of another model. None if nobody can say: the exact evaluator cannot
        run the subgraph, or gives other tensors.
        """
        exact, plain = self._run(self._exact, model), None
        if exact is not None:
            plain = next((given for worker in self._plain if (given := self._run(worker, model)) is not None), None)
        if exact is None or plain is None:
            return None
        wanted = tuple(names)
        noise = _worst(wanted, [[run.get(name) for run in runs] for name in wanted], plain, exact)
        if noise is None or not self._recorded.is_golden:
            return None if noise is None else RoundingVerdict(noise)
        golden = _worst(wanted, [self._recorded.expected(name) for name in wanted], plain, exact)
        if golden is None or (golden.passed, -golden.ratio) >= (noise.passed, -noise.ratio):
            return RoundingVerdict(noise)
        return RoundingVerdict(golden, is_of_model=noise.passed and golden.verdict == "bug")

    def _run(self, worker: Worker, model: ModelInput) -> Runs | None:
        with contextlib.suppress(*CANNOT_RUN):
            return worker.run(model, self._path)
        return None


def _worst(
    names: Sequence[str], values: Sequence[Sequence[Array | None]], plain: Runs, exact: Runs
) -> NoiseComparison | None:
    """The worst verdict on some tensors, of which ``values`` are given per sample; None if one is not there."""
    judged = []
    for name, given in zip(names, values, strict=True):
        for number, (ours, theirs, right) in enumerate(zip(given, plain, exact, strict=False)):
            if ours is None or name not in theirs or name not in right:
                return None
            judged.append(judge_noise(name, number, ours, theirs[name], right[name]))
    return max(judged, key=lambda noise: (not noise.passed, noise.ratio), default=None)
