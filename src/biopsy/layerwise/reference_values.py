"""Reference values of a subgraph: what the reference makes of the very values that the subgraph is fed with.

Where the reference computes in the types of the model, and without fusing, that is what it recorded in the whole model.
Where it computes in more, or keeps more than these types hold, it is not: recorded values are rounded before a subgraph
is fed with them, and an exact layer would be judged by values that were computed from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import TensorError
from biopsy.layerwise.recorded import RecordedModel
from biopsy.layerwise.tensor_errors import Judge
from biopsy.tensors.results import Array

CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
"""What says that one subgraph cannot be run, and nothing about others."""

Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""Tensors by name, per input sample."""


class ReferenceValues:
    """Judges subgraphs fed with recorded values; ``reference`` is run on them where what it recorded may differ."""

    def __init__(self, recorded: RecordedModel, reference: Worker, judge: Judge) -> None:
        self._recorded = recorded
        self._reference = reference
        self._judge = judge

    def of(self, model: ModelInput, *, always: bool = False) -> Runs | None:
        """What the reference gives for a subgraph; None where the recorded values are just that.

        ``always``: ask it also where it computes in the types of the model. Golden values are all that there is.
        """
        if self._recorded.is_golden or not (always or self._recorded.is_rounded):
            return None
        try:
            return self._reference.run(model, self._recorded.fed.path)
        except CANNOT_RUN:
            return None  # it could run the whole model: what it recorded there is the best that there is

    def errors(self, names: Iterable[str], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those tensors that ``runs`` hold, by what ``of`` gave for the same subgraph."""
        return [
            self._judge.error(name, [run[name] for run in runs], self._expected(name, expected))
            for name in names
            if all(name in run for run in runs)
        ]

    def _expected(self, name: str, expected: Runs | None) -> list[Array]:
        if expected is not None and all(name in run for run in expected):
            return [run[name] for run in expected]
        return self._recorded.expected(name)
