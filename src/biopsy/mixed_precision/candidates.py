"""The candidates of a search over precisions: mixed models as trials."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.mixed_precision.mixed_models import MixedModels
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial

_MOST_KEPT = 4
"""Models that are kept besides those that may be checked next."""


class MixedCandidates:
    """Makes a trial of every choice of layers that are high; the last few are kept, being asked for again and again.

    ``jobs`` is how many may be checked at once.
    """

    def __init__(self, models: MixedModels, jobs: int) -> None:
        self.models = models
        self.all_high = tuple(layer.number for layer in models.layers)
        self._most = _MOST_KEPT + 2 * jobs
        self._trials: dict[frozenset[int], Trial] = {}

    def trial(self, high: Sequence[int], stage: Stage, description: str) -> Trial:
        """The model with these layers high and all others low, to be checked."""
        layers = frozenset(high)
        trial = self._trials.pop(layers, None)
        if trial is None or (trial.stage, trial.description) != (stage, description):
            parts = trial.parts if trial is not None else self.models.parts(layers)
            trial = Trial(parts=parts, size=len(layers), stage=stage, description=description)
        self._trials[layers] = trial
        while len(self._trials) > self._most:
            del self._trials[next(iter(self._trials))]
        return trial

    def made(self, high: Sequence[int]) -> Trial | None:
        """The trial with these layers high, if it is one of those that are kept."""
        return self._trials.get(frozenset(high))
