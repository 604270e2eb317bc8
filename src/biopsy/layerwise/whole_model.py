"""Errors in the whole model, run by the suspect: unmarked, then with its tensors marked as outputs batch by batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import Failure, Observed, Rate, TensorError
from biopsy.layerwise.isolated_layers import RUNS_TO_BE_SURE, failure_of
from biopsy.layerwise.recorded import Recorded
from biopsy.layerwise.tensor_errors import Judge, Odd, odd, worst
from biopsy.layerwise.truth import CANNOT_RUN
from biopsy.search.subset import minimized
from biopsy.tensors.recording import Request, plan
from biopsy.tensors.results import Array, release, same_values

_MOST_TRIES = 200
"""Runs that looking for the tensors that hide a failure may take."""


@dataclass
class Whole:
    """Runs the whole model in the suspect.

    ``outputs`` are the errors of the model's outputs, ``failure`` why there are none; ``propagated`` those of tensors,
    each marked in one batch; ``odd`` the NaN and infinities in them. ``observed``: what marking has changed, at first
    with all tensors of the batch (see ``narrow``).
    ``unmarkable``: tensors that the suspect cannot give. ``is_flaky``: it gives other values from run to run.
    ``flaky``: it is wrong, or fails, in some runs only; ``outputs`` and ``failure`` are those of the worst run.
    """

    model: ModelInput
    recorded: Recorded
    worker: Worker
    judge: Judge
    listener: events.Listener
    outputs: dict[str, TensorError] = field(default_factory=dict)
    failure: Failure | None = None
    propagated: dict[str, TensorError] = field(default_factory=dict)
    odd: dict[str, Odd] = field(default_factory=dict)
    observed: list[Observed] = field(default_factory=list)
    unmarkable: list[str] = field(default_factory=list)
    is_flaky: bool = False
    flaky: Rate | None = None
    _unmarked: Sequence[Mapping[str, Array]] = ()

    def run_unmarked(self) -> None:
        """Run the model as it is, often enough to see whether the suspect always says the same.

        Raises nothing that says that the suspect cannot run it: that is ``failure``.
        """
        wrong = [self._run_once(number) for number in range(RUNS_TO_BE_SURE)]
        if 0 < sum(wrong) < len(wrong):
            self.is_flaky, self.flaky = True, Rate(sum(wrong), len(wrong))

    def _run_once(self, number: int) -> bool:
        """Run the model; whether it is wrong, or fails. What took too long is not run again."""
        if self.failure is not None and self.failure.kind == "Timeout":
            return True
        try:
            runs = self.worker.run(self.model, self.recorded.inputs)
        except errors.EngineFailure as failure:
            self.failure = failure_of(failure)
            return True
        self._unmarked = self._unmarked or runs
        found = [self._error(name, runs) for name in (runs[0] if runs else ())]
        known = [error for error in found if error is not None]
        for error in known:
            before = self.outputs.get(error.tensor, error)
            self.outputs[error.tensor] = worst([before, error])
        self.is_flaky = self.is_flaky or (number > 0 and self._differs(runs))
        return not all(error.passed for error in known)

    def _error(self, name: str, runs: Sequence[Mapping[str, Array]]) -> TensorError | None:
        """The error of an output of the model; None if nothing is recorded of it."""
        expected = [outputs[name] for outputs in self.recorded.outputs if name in outputs]
        if len(expected) != len(runs):
            return None
        return self.judge.error(name, [run[name] for run in runs], expected)

    def _differs(self, runs: Sequence[Mapping[str, Array]]) -> bool:
        """Whether an output is, by the tolerances, another one than in the first run."""
        for name in self.outputs:
            now, first = ([run[name] for run in side] for side in (runs, self._unmarked))
            if not self.judge.error(name, now, first).passed:
                return True
        return False

    def run_marked(self, names: Sequence[str], limit: int) -> None:
        """Measure ``names``, at most ``limit`` bytes of them at a time."""
        samples = max(len(self.recorded.samples), 1)
        sizes = {name: self.recorded.size(name) // samples for name in names}
        own = [name for name in self.outputs if name in sizes]
        parts, shared = plan(Request(0, names, sizes, own, samples, max(limit // samples, 1)))
        shown = [name for name in shared if name in self.outputs]
        for number, part in enumerate(parts, 1):
            self._run_part(part, shown)
            self.listener(events.Measured("whole", number, len(parts)))

    def _run_part(self, names: Sequence[str], shown: Sequence[str]) -> None:
        """Measure one batch; where the suspect fails with it marked, its halves."""
        try:
            runs = self.worker.run(self.model, self.recorded.inputs, list(dict.fromkeys((*names, *shown))))
        except CANNOT_RUN:
            if len(names) == 1:
                self.unmarkable += names
                return
            half = len(names) // 2
            self._run_part(names[:half], shown)
            self._run_part(names[half:], shown)
            return
        for name in names:
            if all(name in run for run in runs):
                self._measure(name, [run[name] for run in runs])
        for name in shown:
            self._observe(name, runs, names)

    def _measure(self, name: str, values: Sequence[Array]) -> None:
        if (lost := odd(values)) is not None:
            self.odd[name] = lost
        self.propagated[name] = self.judge.error(name, values, self.recorded.values(name))

    # Does observing change the result?

    def _observe(self, output: str, runs: Sequence[Mapping[str, Array]], names: Sequence[str]) -> None:
        """Compare an output with what it is when nothing is marked."""
        if any(observed.output == output for observed in self.observed) or not all(output in run for run in runs):
            return
        marked, unmarked = ([run[output] for run in side] for side in (runs, self._unmarked))
        if all(map(same_values, marked, unmarked)) or self.judge.error(output, marked, unmarked).passed:
            release(*marked, *unmarked)
            return
        self.is_flaky = self.is_flaky or not self._is_steady
        if self.is_flaky:
            return
        before, after = (
            self.outputs[output].passed,
            self.judge.error(output, marked, self.recorded.values(output)).passed,
        )
        if before == after:
            self.observed.append(Observed("differs", output, tuple(names)))
        elif after:
            self.observed.append(Observed("gone", output, tuple(names)))
        else:
            self.observed.append(Observed("appears", output, tuple(names)))

    def narrow(self, first: Sequence[str]) -> None:
        """Find few tensors that make a wrong output right when they are marked, where many were; best of ``first``."""
        self.observed = [
            replace(one, tensors=self._that_hide(one.output, one.tensors, first)) if one.change == "gone" else one
            for one in self.observed
        ]

    def _that_hide(self, output: str, names: Sequence[str], first: Sequence[str]) -> tuple[str, ...]:
        tries = itertools.count(1)

        def hide(some: Sequence[str]) -> bool:
            number = next(tries)
            self.listener(events.Measured("marks", number, _MOST_TRIES))
            return number <= _MOST_TRIES and self._hides(output, some)

        alone = next((name for name in first if name in names and hide([name])), None)
        if alone is not None:
            return (alone,)
        return tuple(minimized([name for name in names if name != output], hide))

    def _hides(self, output: str, names: Sequence[str]) -> bool:
        try:
            runs = self.worker.run(self.model, self.recorded.inputs, [*names, output])
        except CANNOT_RUN:
            return False
        return self.judge.error(output, [run[output] for run in runs], self.recorded.values(output)).passed

    @cached_property
    def _is_steady(self) -> bool:
        """Whether the suspect gives the same outputs, within the tolerances, when it runs the model once more."""
        return not any(self._differs(self.worker.run(self.model, self.recorded.inputs)) for _ in range(RUNS_TO_BE_SURE))
