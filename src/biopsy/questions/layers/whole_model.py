"""The whole model, run by the suspect as it is: errors of its outputs, and of tensors that are marked as outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.model.index import ModelIndex, Node
from biopsy.questions.layers.findings import Failure, MarkingEffect, Rate, TensorError, failure_of
from biopsy.questions.layers.isolated_layers import RUNS_TO_BE_SURE
from biopsy.questions.layers.question import Judge, worst
from biopsy.questions.layers.recorded import CANNOT_RUN, NonFinite, RecordedModel, Runs, non_finite
from biopsy.search.subset import minimized
from biopsy.tensors.recording import Request, plan
from biopsy.tensors.results import Array, release, same_values


@dataclass(kw_only=True)
class WholeModel:
    """Runs the whole model in the suspect.

    ``outputs`` are the errors of the model's outputs, ``failure`` why there are none. ``is_flaky``: the suspect gives
    other values from run to run. ``flaky``: it is wrong, or fails, in some runs only; ``outputs`` and ``failure`` are
    then those of the worst run.
    """

    model: ModelInput
    recorded: RecordedModel
    suspect: Worker
    judge: Judge
    outputs: dict[str, TensorError] = field(default_factory=dict)
    failure: Failure | None = None
    is_flaky: bool = False
    flaky: Rate | None = None
    _first_run: Runs = ()

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
        return self.suspect.run(self.model, self.recorded.inputs, list(dict.fromkeys(names)))

    def unmarked(self, output: str) -> list[Array]:
        """The values that an output had in the first run."""
        return [run[output] for run in self._first_run]

    @cached_property
    def is_steady(self) -> bool:
        """Whether the suspect gives the same outputs, within the tolerances, when it runs the model again."""
        again = (self.suspect.run(self.model, self.recorded.inputs) for _ in range(RUNS_TO_BE_SURE))
        return not any(self._differs(runs) for runs in again)

    def _run_once(self, number: int) -> bool:
        """Run the model; whether it is wrong, or fails. What took too long is not run again."""
        if self.failure is not None and self.failure.kind == "Timeout":
            return True
        try:
            runs = self.suspect.run(self.model, self.recorded.inputs)
        except errors.EngineFailure as failure:
            self.failure = failure_of(failure)
            return True
        self._first_run = self._first_run or runs
        is_right = True
        for name in runs[0] if runs else ():
            expected = self.recorded.outputs.values(name)
            if expected is None:
                continue  # nothing is recorded of it
            error = self.judge.error(name, [run[name] for run in runs], expected)
            self.outputs[name] = worst([self.outputs.get(name, error), error])
            is_right = is_right and error.passed
        self.is_flaky = self.is_flaky or (number > 0 and self._differs(runs))
        return not is_right

    def _differs(self, runs: Sequence[Mapping[str, Array]]) -> bool:
        """Whether an output is, by the tolerances, another one than in the first run."""
        return not all(
            self.judge.error(name, [run[name] for run in runs], self.unmarked(name)).passed for name in self.outputs
        )


# Errors of tensors in the whole model, marked as outputs batch by batch; and what marking them changes.

_MOST_TRIES = 200
"""Runs that the search for the tensors that hide a failure may take."""


@dataclass(kw_only=True)
class MarkedTensors:
    """Measures tensors in the whole model, each marked in one batch.

    ``propagated`` are their errors, ``non_finite`` the NaN and infinities in them. ``effects``: what marking has
    changed, at first with all tensors of the batch (see ``narrow``). ``unmarkable``: tensors that the suspect cannot
    give.
    """

    whole: WholeModel
    listener: events.Listener
    propagated: dict[str, TensorError] = field(default_factory=dict)
    non_finite: dict[str, NonFinite] = field(default_factory=dict)
    effects: list[MarkingEffect] = field(default_factory=list)
    unmarkable: list[str] = field(default_factory=list)

    def error_of(self, index: ModelIndex, node: Node) -> TensorError | None:
        """The error of a layer's worst output; None if none was measured."""
        measured = (self.propagated.get(index.names[tensor]) for tensor in node.writes)
        known = [error for error in measured if error is not None]
        return worst(known) if known else None

    def run(self, names: Sequence[str], limit: int) -> None:
        """Measure ``names``, at most ``limit`` bytes of them at a time."""
        samples = max(self.whole.recorded.computed.count, 1)
        sizes = {name: self.whole.recorded.computed.size(name) // samples for name in names}
        own = [name for name in self.whole.outputs if name in sizes]
        request = Request(
            runner=0, names=names, sizes=sizes, own=own, iterations=samples, limit=max(limit // samples, 1)
        )
        batches, shared = plan(request)
        shown = [name for name in shared if name in self.whole.outputs]
        for number, batch in enumerate(batches, 1):
            self._run_batch(batch, shown)
            self.listener(events.Measured("whole", number, len(batches)))

    def _run_batch(self, names: Sequence[str], shown: Sequence[str]) -> None:
        """Measure one batch; where the suspect fails with it marked, its halves."""
        try:
            runs = self.whole.marked([*names, *shown])
        except CANNOT_RUN:
            if len(names) == 1:
                self.unmarkable += names
                return
            half = len(names) // 2
            self._run_batch(names[:half], shown)
            self._run_batch(names[half:], shown)
            return
        for name in names:
            if all(name in run for run in runs):
                values = [run[name] for run in runs]
                if (lost := non_finite(values)) is not None:
                    self.non_finite[name] = lost
                self.propagated[name] = self.whole.judge.error(name, values, self.whole.recorded.expected(name))
        for name in shown:
            self._observe(name, runs, names)

    # Does observing change the result?

    def _observe(self, output: str, runs: Sequence[Mapping[str, Array]], names: Sequence[str]) -> None:
        """Compare an output with what it is when nothing is marked."""
        if any(effect.output == output for effect in self.effects) or not all(output in run for run in runs):
            return
        marked, unmarked = [run[output] for run in runs], self.whole.unmarked(output)
        if all(map(same_values, marked, unmarked)) or self.whole.judge.error(output, marked, unmarked).passed:
            release(*marked, *unmarked)
            return
        self.whole.is_flaky = self.whole.is_flaky or not self.whole.is_steady
        if self.whole.is_flaky:
            return
        before = self.whole.outputs[output].passed
        after = self.whole.judge.error(output, marked, self.whole.recorded.expected(output)).passed
        changed: Literal["gone", "appears"] = "gone" if after else "appears"
        self.effects.append(MarkingEffect("differs" if before == after else changed, output, tuple(names)))

    def narrow(self, first: Sequence[str]) -> None:
        """Find few tensors that make a wrong output right when they are marked, where many were; best of ``first``."""
        for place, effect in enumerate(self.effects):
            if effect.change == "gone":
                self.effects[place] = replace(effect, tensors=self._that_hide(effect.output, effect.tensors, first))

    def _that_hide(self, output: str, names: Sequence[str], first: Sequence[str]) -> tuple[str, ...]:
        tries = itertools.count(1)

        def hide(some: Sequence[str]) -> bool:
            number = next(tries)
            self.listener(events.Measured("marks", number, _MOST_TRIES))
            if number > _MOST_TRIES:
                return False
            try:
                runs = self.whole.marked([*some, output])
            except CANNOT_RUN:
                return False
            return self.whole.judge.error(
                output, [run[output] for run in runs], self.whole.recorded.expected(output)
            ).passed

        single = next((name for name in first if name in names and hide([name])), None)
        if single is not None:
            return (single,)
        return tuple(minimized([name for name in names if name != output], hide))
