"""Comparing all outputs of two runners, or of a runner with golden values, by tolerances or by a function of the
user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.comparison.compare import Detail, OutputComparison, compare_output
from biopsy.comparison.tolerance import Criteria, MetricLimits, Stats, Tolerances, asked_of
from biopsy.tensors.results import Feed, Iteration, RunnerResult, release
from biopsy.tensors.user_script import ScriptOutputs, UserScript
from biopsy.text import count, first_line, first_of, html_table, printable, some_of

_Judge: TypeAlias = "Callable[[Iteration, Iteration, Sequence[str]], Iterator[OutputComparison]]"
"""What compares the outputs of these names of one iteration, one after the other."""


@dataclass(frozen=True)
class IterationComparison:
    """One iteration: the outputs that both sides have, in the actual side's order, and those that only one has."""

    number: int
    outputs: tuple[OutputComparison, ...]
    only_actual: tuple[str, ...]
    only_expected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every output that was compared passes."""
        return all(output.passed for output in self.outputs)


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """The verdict on a runner's outputs against another's, or against golden values.

    ``actual_iterations`` and ``expected_iterations`` are how many there were; only those of both sides are compared.
    ``complete`` is False where ``fail_fast`` ended the comparison at the first failing output. ``missing`` are outputs
    that the actual side should have and has not. ``judged_by`` names the function that decided, "" for the tolerances.
    """

    actual: str
    expected: str
    iterations: tuple[IterationComparison, ...]
    actual_iterations: int
    expected_iterations: int
    complete: bool = field(default=True)
    missing: tuple[str, ...] = ()
    judged_by: str = ""

    @property
    def passed(self) -> bool:
        """Whether every output that was compared passes, and none is missing."""
        return not self.missing and all(iteration.passed for iteration in self.iterations)

    @property
    def elements(self) -> int:
        """How many elements were compared."""
        return sum(math.prod(output.actual_shape) for one in self.iterations for output in one.outputs)

    @property
    def failures(self) -> tuple[tuple[int, OutputComparison], ...]:
        """The failing outputs with the number of their iteration, in order."""
        return tuple((it.number, output) for it in self.iterations for output in it.outputs if not output.passed)

    def __repr__(self) -> str:
        failing = some_of(f"{output.name!r} ({output.reason})" for _, output in self.failures)
        missing = f"; missing: {some_of(map(repr, self.missing))}" if self.missing else ""
        return f"<RunComparison of {self._summary}{f': {failing}' if failing else ''}{missing}>"

    def _repr_html_(self) -> str:
        compared = ((it.number, output.name, *output.told) for it in self.iterations for output in it.outputs)
        missing = (("", name, "missing", "") for name in self.missing)
        rows: list[tuple[object, ...]] = [*compared, *missing]
        return html_table(
            self._summary,
            ["iteration", "output", "verdict", "reason"],
            sorted(rows, key=lambda row: row[2] == "passes"),
        )

    @property
    def _summary(self) -> str:
        compared = sum(len(one.outputs) for one in self.iterations)
        sides = f"{printable(self.actual)} with {printable(self.expected)}"
        outputs = count(compared, "output")
        return f"{sides}: " + (f"passes, {outputs}" if self.passed else f"FAILS in {len(self.failures)} of {outputs}")


def compare_runs(
    actual: RunnerResult,
    expected: RunnerResult,
    tolerances: Tolerances | None = None,
    stats: Stats | None = None,
    fail_fast: bool = False,
    limits: MetricLimits | None = None,
    detail: Detail = "usual",
) -> RunComparison:
    """Compare the outputs of two runners, iteration by iteration, by name.

    Outputs that only one side has are listed, and decide nothing. ``fail_fast`` stops after the first output that
    fails. What is read from a memory map is in memory for one output at a time. Raises CannotCompare if no output, or
    no iteration, is common to both, and if nothing fails but no output has any element: equal shapes prove nothing.
    """
    tolerances, stats, limits = tolerances or Tolerances(), stats or Stats(), limits or MetricLimits()

    def judge(left: Iteration, right: Iteration, common: Sequence[str]) -> Iterator[OutputComparison]:
        for name in common:
            sides = left.outputs[name], right.outputs[name]
            one = compare_output(name, *sides, asked_of(name, tolerances, stats, limits), detail)
            release(*sides)
            yield one

    return _compared(actual, expected, judge, fail_fast=fail_fast)


def compare_runs_by(
    function: ComparisonFunction,
    actual: RunnerResult,
    expected: RunnerResult,
    *,
    fail_fast: bool = False,
    detail: Detail = "usual",
) -> RunComparison:
    """As ``compare_runs``, where a function of the user's decides alone. What differs is measured all the same.

    Raises CannotCompare as ``ComparisonFunction.judge`` too.
    """
    shown: Detail = "usual" if detail == "brief" else detail  # what is within the tolerances may fail all the same

    def judge(left: Iteration, right: Iteration, common: Sequence[str]) -> Iterator[OutputComparison]:
        said = function.judge(ScriptOutputs(actual.runner, left), ScriptOutputs(expected.runner, right), common)
        for name, reason in said.items():
            one = compare_output(name, left.outputs[name], right.outputs[name], Criteria(), shown)
            yield replace(one, passed=reason is None, reason=reason, tolerances_decide=False)

    return replace(_compared(actual, expected, judge, fail_fast=fail_fast), judged_by=function.label)


def _compared(actual: RunnerResult, expected: RunnerResult, judge: _Judge, *, fail_fast: bool) -> RunComparison:
    pairs = list(zip(actual.iterations, expected.iterations, strict=False))
    if not any(left.outputs.keys() & right.outputs.keys() for left, right in pairs):
        named = []
        for one in (actual, expected):
            if not one.iterations:
                raise errors.CannotCompare(f"there is nothing to compare: {one.runner} has no iteration")
            names = first_of(list(map(repr, one.iterations[0].outputs)), 4)
            named.append(f"{one.runner} has {names or 'no outputs'}")
        raise errors.CannotCompare(
            f"there is nothing to compare: {', '.join(named)}",
            details=["no name is in both: these values are of another model, or of other tensors of this one"],
            next_steps=[
                "biopsy inspect data FILE    and    biopsy inspect model MODEL    show the names of both",
                "if they are of this model: save them with --onnx-outputs mark all, so that every tensor is among them",
            ],
        )
    compared: list[IterationComparison] = []
    complete = True
    for number, (left, right) in enumerate(pairs):
        outputs = []
        for output in judge(left, right, [name for name in left.outputs if name in right.outputs]):
            outputs.append(output)
            complete = output.passed or not fail_fast
            if not complete:
                break
        only_left = tuple(name for name in left.outputs if name not in right.outputs)
        only_right = tuple(name for name in right.outputs if name not in left.outputs)
        compared.append(IterationComparison(number, tuple(outputs), only_left, only_right))
        if not complete:
            break
    comparison = RunComparison(
        actual=actual.runner,
        expected=expected.runner,
        iterations=tuple(compared),
        actual_iterations=len(actual.iterations),
        expected_iterations=len(expected.iterations),
        complete=complete,
    )
    if comparison.passed and not comparison.elements:
        empty = (output for iteration in compared for output in iteration.outputs)
        some = first_of([f"{output.name!r} {output.actual_dtype}{list(output.actual_shape)}" for output in empty], 4)
        raise errors.CannotCompare(
            f"there is nothing to compare: {actual.runner} and {expected.runner} have only empty outputs, {some}",
            next_steps=["give other inputs, with which the outputs have elements"],
        )
    return comparison


def require_same_inputs(
    feeds: Sequence[Feed],
    expected: RunnerResult,
    tolerances: Tolerances | None = None,
    stats: Stats | None = None,
) -> None:
    """Raise CannotCompare if ``expected`` holds other values for an input than were fed.

    Golden values of every tensor hold those that are inputs of a part of the model too. What that part computes from
    other values says nothing about it.
    """
    tolerances, stats = tolerances or Tolerances(), stats or Stats()
    no_limits = MetricLimits(chosen=frozenset({"simple"}))
    for number, (feed, iteration) in enumerate(zip(feeds, expected.iterations, strict=False)):
        for name in feed.keys() & iteration.outputs.keys():
            asked = asked_of(name, tolerances, stats, no_limits)
            one = compare_output(name, feed[name], iteration.outputs[name], asked, "brief")
            if not one.passed:
                raise errors.CannotCompare(
                    f"input {name!r} of iteration {number} is fed with other values than {expected.runner} has for it"
                    f" ({one.reason}): the outputs cannot be compared",
                    next_steps=["biopsy data to-input INPUTS OUTPUTS -o LAYERWISE    then --load-inputs LAYERWISE"],
                )


# A comparison function of the user's, which decides in the place of tolerances: Polygraphy's contract for scripts.
#
# It takes the outputs of one iteration twice, what is judged and what is expected, and returns a verdict for each
# output by name, or one for all. Nothing but a clear yes is a pass.


class ComparisonFunction:
    """A function that judges outputs."""

    def __init__(self, script: UserScript, name: str) -> None:
        """Load it. Raises as ``UserScript.function``."""
        self._script = script
        self._function = script.function(name)
        self.label = f"{script.path.name}:{name}"

    def judge(self, actual: ScriptOutputs, expected: ScriptOutputs, common: Sequence[str]) -> dict[str, str | None]:
        """Of each of the ``common`` outputs that it judges: why it fails; None where it passes.

        A verdict for a name that is no such output, and one for all, holds for all of them. An assertion that does not
        hold is a no. Raises CannotCompare, which says nothing of a candidate, if the function fails in another way, or
        gives anything that is no verdict.
        """
        with self._script.running(errors.CannotCompare):
            try:
                said = self._function(actual, expected)
            except AssertionError as error:
                why = printable(first_line(str(error).strip())) or "an assertion does not hold"
                return dict.fromkeys(common, f"{self.label}: {why}")
            if not isinstance(said, Mapping):
                verdicts = {"": self._truth("what it returns", said)}
            else:
                verdicts = {str(name): self._truth(f"what it says of {name!r}", value) for name, value in said.items()}
                if not verdicts:
                    raise self._no_verdict("what it returns is empty")
        others = {name: passes for name, passes in verdicts.items() if name not in common}
        wrong = [name for name, passes in others.items() if not passes]
        judged = common if others else [name for name in common if name in verdicts]
        named = ", ".join(printable(repr(name)) for name in wrong if name)
        reasons = {True: f"{self.label} says no{f' to {named}' if named else ''}", False: f"{self.label} says no"}
        passes = {name: verdicts.get(name, True) for name in judged}
        return {name: None if passed and not wrong else reasons[passed] for name, passed in passes.items()}

    def _truth(self, what: str, value: Any) -> bool:
        """Whether a value is a yes. Numbers are neither yes nor no: a distance of 0 would be a no, any other a yes."""
        dtype = getattr(value, "dtype", None)
        if isinstance(value, bool):
            return value
        if dtype is not None and "bool" in str(dtype):
            return bool(value)  # raises for several values, of which nobody said whether all or any must hold
        has_truth = hasattr(type(value), "__bool__") and value is not None
        if dtype is not None or isinstance(value, Number) or not has_truth:
            raise self._no_verdict(f"{what} is of type {type(value).__name__}")
        return bool(value)

    def _no_verdict(self, what: str) -> errors.CannotCompare:
        return errors.CannotCompare(
            f"{self.label} gives no verdict: {what}",
            next_steps=["it must return True or False, or a dictionary of them by the names of outputs"],
        )
