"""The whole model, run by the suspect as it is: errors of its outputs, and whether they are the same in each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import Failure, Rate, TensorError, failure_of
from biopsy.layerwise.isolated_layers import RUNS_TO_BE_SURE
from biopsy.layerwise.recorded import RecordedModel
from biopsy.layerwise.reference_values import Runs
from biopsy.layerwise.tensor_errors import Judge, worst
from biopsy.tensors.results import Array


class WholeModel:
    """Runs the whole model in the suspect.

    ``outputs`` are the errors of the model's outputs, ``failure`` why there are none. ``is_flaky``: the suspect gives
    other values from run to run. ``flaky``: it is wrong, or fails, in some runs only; ``outputs`` and ``failure`` are
    then those of the worst run.
    """

    def __init__(self, model: ModelInput, recorded: RecordedModel, suspect: Worker, judge: Judge) -> None:
        self.recorded = recorded
        self.judge = judge
        self.outputs: dict[str, TensorError] = {}
        self.failure: Failure | None = None
        self.is_flaky = False
        self.flaky: Rate | None = None
        self._model = model
        self._suspect = suspect
        self._first_run: Runs = ()

    @property
    def is_wrong(self) -> bool:
        """Whether the suspect fails, or an output is out of tolerance."""
        return self.failure is not None or not all(error.passed for error in self.outputs.values())

    def run(self) -> None:
        """Run the model as it is, often enough to see whether the suspect always says the same.

        Raises nothing that says that the suspect cannot run it: that is ``failure``.
        """
        wrong = [self._run_once(number) for number in range(RUNS_TO_BE_SURE)]
        if 0 < sum(wrong) < len(wrong):
            self.is_flaky, self.flaky = True, Rate(sum(wrong), len(wrong))

    def marked(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """The suspect's values with these tensors marked as outputs. Raises what ``Worker.run`` raises."""
        return self._suspect.run(self._model, self.recorded.inputs, list(dict.fromkeys(names)))

    def unmarked(self, output: str) -> list[Array]:
        """The values that an output had in the first run."""
        return [run[output] for run in self._first_run]

    def is_steady(self) -> bool:
        """Whether the suspect gives the same outputs, within the tolerances, when it runs the model again."""
        again = (self._suspect.run(self._model, self.recorded.inputs) for _ in range(RUNS_TO_BE_SURE))
        return not any(self._differs(runs) for runs in again)

    def _run_once(self, number: int) -> bool:
        """Run the model; whether it is wrong, or fails. What took too long is not run again."""
        if self.failure is not None and self.failure.kind == "Timeout":
            return True
        try:
            runs = self._suspect.run(self._model, self.recorded.inputs)
        except errors.EngineFailure as failure:
            self.failure = failure_of(failure)
            return True
        self._first_run = self._first_run or runs
        measured = [self._error(name, runs) for name in (runs[0] if runs else ())]
        known = [error for error in measured if error is not None]
        for error in known:
            before = self.outputs.get(error.tensor, error)
            self.outputs[error.tensor] = worst([before, error])
        self.is_flaky = self.is_flaky or (number > 0 and self._differs(runs))
        return not all(error.passed for error in known)

    def _error(self, name: str, runs: Sequence[Mapping[str, Array]]) -> TensorError | None:
        """The error of an output of the model; None if nothing is recorded of it."""
        expected = self.recorded.outputs.values(name)
        return None if expected is None else self.judge.error(name, [run[name] for run in runs], expected)

    def _differs(self, runs: Sequence[Mapping[str, Array]]) -> bool:
        """Whether an output is, by the tolerances, another one than in the first run."""
        return not all(
            self.judge.error(name, [run[name] for run in runs], self.unmarked(name)).passed for name in self.outputs
        )
