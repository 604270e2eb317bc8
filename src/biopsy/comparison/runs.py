"""Comparing all outputs of two runners, or of a runner with golden values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from biopsy import errors
from biopsy.comparison.compare import Detail, OutputComparison, compare_output
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances, asked_of
from biopsy.tensors.results import Feed, RunnerResult, release


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
    that the actual side should have and has not.
    """

    actual: str
    expected: str
    iterations: tuple[IterationComparison, ...]
    actual_iterations: int
    expected_iterations: int
    complete: bool = field(default=True)
    missing: tuple[str, ...] = ()

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
    pairs = list(zip(actual.iterations, expected.iterations, strict=False))
    if not any(left.outputs.keys() & right.outputs.keys() for left, right in pairs):
        raise _nothing_in_common(actual, expected)
    compared = []
    complete = True
    for number, (left, right) in enumerate(pairs):
        common = [name for name in left.outputs if name in right.outputs]
        outputs = []
        for name in common:
            sides = left.outputs[name], right.outputs[name]
            one = compare_output(name, *sides, asked_of(name, tolerances, stats, limits), detail)
            release(*sides)
            outputs.append(one)
            if fail_fast and not one.passed:
                complete = False
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
        raise _only_empty(comparison)
    return comparison


def _only_empty(found: RunComparison) -> errors.CannotCompare:
    outputs = [output for iteration in found.iterations for output in iteration.outputs]
    some = ", ".join(f"{one.name!r} {one.actual_dtype}{list(one.actual_shape)}" for one in outputs[:4])
    more = f" and {len(outputs) - 4} more" if len(outputs) > 4 else ""
    return errors.CannotCompare(
        f"there is nothing to compare: {found.actual} and {found.expected} have only empty outputs, {some}{more}",
        next_steps=["give other inputs, with which the outputs have elements"],
    )


def _nothing_in_common(actual: RunnerResult, expected: RunnerResult) -> errors.CannotCompare:
    for one in (actual, expected):
        if not one.iterations:
            return errors.CannotCompare(f"there is nothing to compare: {one.runner} has no iteration")
    return errors.CannotCompare(
        f"there is nothing to compare: {actual.runner} has {_names(actual)}, {expected.runner} has {_names(expected)}",
        next_steps=["save the expected values with --onnx-outputs mark all, so that every tensor is among them"],
    )


def _names(result: RunnerResult) -> str:
    names = list(result.iterations[0].outputs)
    shown = ", ".join(f"{name!r}" for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return shown or "no outputs"


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
            one = compare_output(name, feed[name], iteration.outputs[name], asked)
            if not one.passed:
                raise errors.CannotCompare(
                    f"input {name!r} of iteration {number} is fed with other values than {expected.runner} has for it"
                    f" ({one.reason}): the outputs cannot be compared",
                    next_steps=["biopsy data to-input INPUTS OUTPUTS -o LAYERWISE    then --load-inputs LAYERWISE"],
                )
