"""Rounding or a fault: a subgraph that is out of tolerance, held against the error of plain float32 on its values.

The measure is that of ``biopsy run --compare-with noise`` (``comparison.noise``). Layers that cancel or amplify make
much of the little by which two engines may round differently, and neither a layer nor a fusion is to blame for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.engines.yardsticks import EXACT, PLAIN
from biopsy.layerwise.recorded import RecordedModel
from biopsy.layerwise.reference_values import CANNOT_RUN, Runs
from biopsy.tensors.results import Array


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
