"""Rounding or a fault: a subgraph that is out of tolerance, held against the error of plain float32 on its values.

The measure is that of ``biopsy run --compare-with noise`` (``comparison.noise``). Layers that cancel or amplify make
much of the little by which two engines may round differently, and neither a layer nor a fusion is to blame for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.engines.yardsticks import EXACT, PLAIN
from biopsy.layerwise.reference_values import CANNOT_RUN, Runs


class RoundingJudge:
    """Runs subgraphs exactly and plainly. Use it in a ``with``: its workers end there.

    ``path`` is the file of recorded values that subgraphs are fed with; ``scratch`` a folder for transient files.
    """

    def __init__(self, path: Path, scratch: Path, timeout: float | None = None) -> None:
        self._path = path
        self._exact = Worker(EXACT, scratch, timeout)
        self._plain = [Worker(engine, scratch, timeout) for engine in PLAIN]

    def __enter__(self) -> RoundingJudge:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in (self._exact, *self._plain):
            worker.close()

    def judge(self, model: ModelInput, names: Iterable[str], runs: Runs) -> NoiseComparison | None:
        """The verdict on the worst of some outputs of a subgraph, of which the suspect gave ``runs``.

        None if nobody can say: the exact evaluator cannot run the subgraph, or gives other tensors.
        """
        exact, plain = self._run(self._exact, model), None
        if exact is not None:
            plain = next((given for worker in self._plain if (given := self._run(worker, model)) is not None), None)
        if exact is None or plain is None:
            return None
        judged = []
        for name in names:
            for number, (ours, theirs, right) in enumerate(zip(runs, plain, exact, strict=False)):
                if name not in ours or name not in theirs or name not in right:
                    return None
                judged.append(judge_noise(name, number, ours[name], theirs[name], right[name]))
        return max(judged, key=lambda noise: (not noise.passed, noise.ratio), default=None)

    def _run(self, worker: Worker, model: ModelInput) -> Runs | None:
        with contextlib.suppress(*CANNOT_RUN):
            return worker.run(model, self._path)
        return None
