"""What a piece of the model should give: what the reference makes of the very values that the piece is fed with.

Where the reference computes in the types of the model, and without fusing, that is what it recorded in the whole model.
Where it computes in more, or keeps more than these types hold, it is not: recorded values are rounded before a piece is
fed with them, and a layer that is exact would be judged by values that were made of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import TensorError
from biopsy.layerwise.recorded import Recorded
from biopsy.layerwise.tensor_errors import Judge
from biopsy.tensors.results import Array

CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
"""What says that one piece cannot be run, and nothing about others."""

Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""Tensors by name, per input sample."""


class Truth:
    """Judges pieces fed with recorded values; ``reference`` is run on them where what it recorded may differ."""

    def __init__(self, recorded: Recorded, reference: Worker, judge: Judge) -> None:
        self._recorded = recorded
        self._reference = reference
        self._judge = judge

    def of(self, model: ModelInput, *, always: bool = False) -> Runs | None:
        """What the reference gives for a piece; None where the recorded values tell it.

        ``always``: ask it also where it computes in the types of the model.
        """
        if not (always or self._recorded.is_rounded):
            return None
        try:
            return self._reference.run(model, self._recorded.path)
        except CANNOT_RUN:
            return None  # it could run the whole model: what it recorded there is the best that there is

    def errors(self, names: Iterable[str], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those tensors that ``runs`` hold, by what ``of`` gave for the same piece."""
        found = []
        for name in names:
            if all(name in run for run in runs):
                is_told = expected is not None and all(name in run for run in expected)
                values = [run[name] for run in expected or ()] if is_told else self._recorded.values(name)
                found.append(self._judge.error(name, [run[name] for run in runs], values))
        return found
