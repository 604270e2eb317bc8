"""Compares all outputs of two runners, or of a runner and golden values, by tolerances or by the user's function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.comparison.compare import Detail, JudgedTypes, OutputComparison, compare_output
from biopsy.comparison.tolerance import Criteria, MetricLimits, Stats, Tolerances, criteria_for
from biopsy.tensors.results import Feed, Iteration, RunnerResult, release
from biopsy.tensors.user_script import ScriptOutputs, UserScript
from biopsy.text import count, first_line, first_of, html_table, printable, some_of

_Judge: TypeAlias = "Callable[[Iteration, Iteration, Sequence[str]], Iterator[OutputComparison]]"
"""Compares the outputs of these names in one iteration, one after the other."""


@dataclass(frozen=True)
class IterationComparison:
    """One iteration: the outputs that both sides have, in the actual side's order, and those that only one side has."""

    number: int
    outputs: tuple[OutputComparison, ...]
    only_actual: tuple[str, ...]
    only_expected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every compared output passes."""
        return all(output.passed for output in self.outputs)


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """The comparison of a runner's outputs with another's, or with golden values.

    ``actual_iterations`` and ``expected_iterations`` are the numbers of iterations; only common ones are compared.
    ``complete`` is False if ``fail_fast`` ended the comparison at the first failing output. ``missing`` are outputs
    that the actual side lacks. ``judged_by`` is the name of the user's function, "" if tolerances decided.
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
        """Whether every compared output passes and none is missing."""
        return not self.missing and all(iteration.passed for iteration in self.iterations)

    @property
    def elements(self) -> int:
        """The number of compared elements."""
        return sum(math.prod(output.actual_shape) for each in self.iterations for output in each.outputs)

    @property
    def failures(self) -> tuple[tuple[int, OutputComparison], ...]:
        """The failing outputs with the number of their iteration, in order."""
        return tuple((it.number, output) for it in self.iterations for output in it.outputs if not output.passed)

    def __repr__(self) -> str:
        failing = some_of(f"{output.name!r} ({output.reason})" for _, output in self.failures)
        missing = f"; missing: {some_of(map(repr, self.missing))}" if self.missing else ""
        return f"<RunComparison of {self._summary}{f': {failing}' if failing else ''}{missing}>"

    def _repr_html_(self) -> str:
        compared = ((it.number, output.name, *output.verdict) for it in self.iterations for output in it.outputs)
        missing = (("", name, "missing", "") for name in self.missing)
        rows: list[tuple[object, ...]] = [*compared, *missing]
        return html_table(
            self._summary,
            ["iteration", "output", "verdict", "reason"],
            sorted(rows, key=lambda row: row[2] == "passes"),
        )

    @property
    def _summary(self) -> str:
        compared = sum(len(iteration.outputs) for iteration in self.iterations)
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

    A side that has declared types must have their element types. Outputs that only one side has are listed, and do not
    affect the verdict. ``fail_fast`` stops after the first failing output. Mapped files are in memory for one output at
    a time. Raises CannotCompare if the runners have no output or no iteration in common, and if all outputs are empty
    and pass: that would prove nothing.
    """
    tolerances, stats, limits = tolerances or Tolerances(), stats or Stats(), limits or MetricLimits()

    def judge(left: Iteration, right: Iteration, common: Sequence[str]) -> Iterator[OutputComparison]:
        for name in common:
            sides = left.outputs[name], right.outputs[name]
            criteria = criteria_for(name, tolerances, stats, limits)
            declared = next((side.declared[name] for side in (actual, expected) if name in side.declared), None)
            types = JudgedTypes(declared=declared, actual=name in actual.declared, expected=name in expected.declared)
            comparison = compare_output(name, *sides, criteria, detail, types)
            release(*sides)
            yield comparison

    return _compared(actual, expected, judge, fail_fast=fail_fast)


def compare_runs_by(
    function: ComparisonFunction,
    actual: RunnerResult,
    expected: RunnerResult,
    *,
    fail_fast: bool = False,
    detail: Detail = "usual",
) -> RunComparison:
    """As ``compare_runs``, but only the user's function decides; errors are measured too.

    Raises CannotCompare also as ``ComparisonFunction.judge``.
    """
    shown: Detail = "usual" if detail == "brief" else detail  # an output within the tolerances may fail

    def judge(left: Iteration, right: Iteration, common: Sequence[str]) -> Iterator[OutputComparison]:
        reasons = function.judge(ScriptOutputs(actual.runner, left), ScriptOutputs(expected.runner, right), common)
        for name, reason in reasons.items():
            comparison = compare_output(name, left.outputs[name], right.outputs[name], Criteria(), shown)
            yield replace(comparison, passed=reason is None, reason=reason, tolerances_decide=False)

    return replace(_compared(actual, expected, judge, fail_fast=fail_fast), judged_by=function.label)


def _compared(actual: RunnerResult, expected: RunnerResult, judge: _Judge, *, fail_fast: bool) -> RunComparison:
    pairs = list(zip(actual.iterations, expected.iterations, strict=False))
    if not any(left.outputs.keys() & right.outputs.keys() for left, right in pairs):
        sides = []
        for side in (actual, expected):
            if not side.iterations:
                raise errors.CannotCompare(f"there is nothing to compare: {side.runner} has no iteration")
            names = first_of(list(map(repr, side.iterations[0].outputs)), 4)
            sides.append(f"{side.runner} has {names or 'no outputs'}")
        raise errors.CannotCompare(
            f"there is nothing to compare: {', '.join(sides)}",
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
        names = first_of([f"{output.name!r} {output.actual_dtype}{list(output.actual_shape)}" for output in empty], 4)
        raise errors.CannotCompare(
            f"there is nothing to compare: {actual.runner} and {expected.runner} have only empty outputs, {names}",
            next_steps=["give other inputs, with which the outputs have elements"],
        )
    return comparison


def require_same_inputs(
    feeds: Sequence[Feed], golden: Iterable[RunnerResult], tolerances: Tolerances, stats: Stats
) -> None:
    """Raise CannotCompare if ``golden`` values have other values for an input than those fed.

    Golden values of every tensor include the inputs of a part of the model. Its outputs for other inputs prove nothing.
    """
    no_limits = MetricLimits(chosen=frozenset({"simple"}))
    for expected in golden:
        for number, (feed, iteration) in enumerate(zip(feeds, expected.iterations, strict=False)):
            for name in feed.keys() & iteration.outputs.keys():
                criteria = criteria_for(name, tolerances, stats, no_limits)
                comparison = compare_output(name, feed[name], iteration.outputs[name], criteria, "brief")
                if not comparison.passed:
                    raise errors.CannotCompare(
                        f"input {name!r} of iteration {number} is fed with other values than {expected.runner} has for "
                        f"it ({comparison.reason}): the outputs cannot be compared",
                        next_steps=["biopsy data to-input INPUTS OUTPUTS -o LAYERWISE    then --load-inputs LAYERWISE"],
                    )


class ComparisonFunction:
    """The user's function that decides in place of tolerances, by Polygraphy's contract for scripts.

    It takes the actual and the expected outputs of one iteration, and returns a verdict for each output by name, or one
    for all.
    """

    def __init__(self, script: UserScript, name: str) -> None:
        """Load the function. Raises as ``UserScript.function``."""
        self._script = script
        self._function = script.function(name)
        self.label = f"{script.path.name}:{name}"

    def judge(self, actual: ScriptOutputs, expected: ScriptOutputs, common: Sequence[str]) -> dict[str, str | None]:
        """For each of the ``common`` outputs that the function judges: why it fails, or None if it passes.

        A single verdict, or one for a name that is not a common output, applies to all of them. A failed assertion is a
        no. Raises CannotCompare, which says nothing about a candidate, if the function fails in another way or returns
        no verdict.
        """
        with self._script.running(errors.CannotCompare):
            try:
                returned = self._function(actual, expected)
            except AssertionError as error:
                reason = printable(first_line(str(error).strip())) or "an assertion does not hold"
                return dict.fromkeys(common, f"{self.label}: {reason}")
            if not isinstance(returned, Mapping):
                verdicts = {"": self._truth("what it returns", returned)}
            else:
                verdicts = {
                    str(name): self._truth(f"what it says of {name!r}", value) for name, value in returned.items()
                }
                if not verdicts:
                    raise self._no_verdict("what it returns is empty")
        others = {name: passes for name, passes in verdicts.items() if name not in common}
        failing = [name for name, passes in others.items() if not passes]
        judged = common if others else [name for name in common if name in verdicts]
        names = ", ".join(printable(repr(name)) for name in failing if name)
        reasons = {True: f"{self.label} says no{f' to {names}' if names else ''}", False: f"{self.label} says no"}
        passes = {name: verdicts.get(name, True) for name in judged}
        return {name: None if passed and not failing else reasons[passed] for name, passed in passes.items()}

    def _truth(self, source: str, value: Any) -> bool:
        """Whether a value is a yes. Numbers are not verdicts: a distance of 0 would be a no and any other a yes."""
        dtype = getattr(value, "dtype", None)
        if isinstance(value, bool):
            return value
        if dtype is not None and "bool" in str(dtype):
            return bool(value)  # raises for several values: whether all or any must be true is not known
        has_truth = hasattr(type(value), "__bool__") and value is not None
        if dtype is not None or isinstance(value, Number) or not has_truth:
            raise self._no_verdict(f"{source} is of type {type(value).__name__}")
        return bool(value)

    def _no_verdict(self, problem: str) -> errors.CannotCompare:
        return errors.CannotCompare(
            f"{self.label} gives no verdict: {problem}",
            next_steps=["it must return True or False, or a dictionary of them by the names of outputs"],
        )
