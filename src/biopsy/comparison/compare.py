"""Comparing what two runners gave: a verdict per output, with what a person needs to judge it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.comparison import metrics
from biopsy.comparison.limits import Figures, JudgedLimit, figures, judge
from biopsy.comparison.metrics import Element, ErrorStatistics, Index, Scalar, Statistics
from biopsy.comparison.tolerance import (
    DEFAULT_QUANTILE,
    STRICTEST,
    Criteria,
    MetricLimits,
    Stat,
    Stats,
    Tolerance,
    Tolerances,
    asked_of,
)
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array, Feed, RunnerResult, release

Detail: TypeAlias = Literal["brief", "usual", "full"]
"""How much to find out: "brief" leaves out statistics of what passes, "full" has figures without a limit too."""


@dataclass(frozen=True)
class ErrorSummary:
    """The numbers of two tensors of one shape.

    ``mismatching`` counts the elements outside the tolerances, whichever statistic decides; ``broken`` those of them
    where only one side is a finite number, or where infinities have other signs. ``passing_atol`` is the smallest atol
    that would pass with the given rtol, ``passing_rtol`` the other way round, both rounded up; None where none would.
    ``worst_absolute`` and ``worst_relative`` are None where no element differs. ``offending`` is the element that is
    farthest outside the tolerances, and its error how many times what is allowed there; None where none is outside.
    ``differing`` counts the elements that are not equal; ``greatest`` is the greatest finite |expected| where any is.
    """

    elements: int
    mismatching: int
    broken: int
    absolute: ErrorStatistics
    relative: ErrorStatistics
    worst_absolute: Element | None
    worst_relative: Element | None
    passing_atol: float | None
    passing_rtol: float | None
    offending: Element | None = None
    differing: int = 0
    greatest: float = 0.0

    @property
    def fraction(self) -> float:
        """The part of the elements that mismatches, 0 to 1."""
        return self.mismatching / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class OutputComparison:
    """The verdict on one output. ``reason`` says in a few words why it fails; None where it passes.

    ``measured`` is None where shapes differ or only one side holds strings. Statistics are None for strings. ``judged``
    are the figures that have a limit; ``tolerances_decide`` is False where they alone decide. ``figures`` are there
    only where all detail was asked for.
    """

    name: str
    passed: bool
    reason: str | None
    stat: Stat
    quantile: float
    tolerance: Tolerance
    actual_shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    actual_dtype: str
    expected_dtype: str
    actual_statistics: Statistics | None
    expected_statistics: Statistics | None
    measured: ErrorSummary | None
    judged: tuple[JudgedLimit, ...] = ()
    tolerances_decide: bool = True
    figures: Figures | None = None


def compare_tensors(
    name: str,
    actual: Array,
    expected: Array,
    tolerance: Tolerance | None = None,
    stat: Stat = "elemwise",
    quantile: float = DEFAULT_QUANTILE,
) -> OutputComparison:
    """Compare one output with what is expected of it, by default as ``asked_of`` has it.

    Other shapes fail. Other types do not: numbers are compared by value, in float64 or better, integers exactly;
    strings must be equal. Two NaN in the same place are equal, as are two infinities of the same sign; a NaN or
    infinity on one side only fails whatever the statistic. ``stat`` and ``quantile`` (0 to 1): see tolerance.Stat.
    """
    given = Criteria() if tolerance is None else Criteria(tolerance, tolerance)
    return compare_output(name, actual, expected, replace(given, stat=stat, quantile=quantile))


def compare_output(
    name: str, actual: Array, expected: Array, asked: Criteria, detail: Detail = "usual"
) -> OutputComparison:
    """As ``compare_tensors``, with all that can be asked of an output.

    Raises DoesNotFit if the output lacks an axis along which ranks are asked for.
    """
    measured = shown = None
    judged: tuple[JudgedLimit, ...] = ()
    tolerance = asked.tolerance_of(expected)
    if actual.shape != expected.shape:
        reason: str | None = f"shapes differ: {list(actual.shape)}, expected {list(expected.shape)}"
    elif is_text(actual) != is_text(expected):
        reason = f"types differ: {_dtype(actual)}, expected {_dtype(expected)}"
    elif is_text(actual):
        measured = _measured_text(actual, expected)
        reason = f"{measured.mismatching} of {measured.elements} strings differ" if measured.mismatching else None
    else:
        measured = _measured(actual, expected, tolerance, asked.stat, asked.quantile)
        judged = tuple(judge(name, actual, expected, limit) for limit in asked.limits)
        shown = figures(actual, expected) if detail == "full" else None
        if not measured.broken:
            _require_ranks(name, actual, judged)
        reason = _reason(measured, asked, tolerance, judged)
    told = reason is not None or detail != "brief"
    statistics = (metrics.statistics(actual), metrics.statistics(expected)) if told else (None, None)
    return OutputComparison(
        name, reason is None, reason, asked.stat, asked.quantile, tolerance,
        actual.shape, expected.shape, _dtype(actual), _dtype(expected),
        *statistics, measured, judged, asked.tolerances_decide, shown,
    )  # fmt: skip


def _dtype(array: Array) -> str:
    return "string" if is_text(array) else array.dtype.name


def _measured(actual: Array, expected: Array, tolerance: Tolerance, stat: Stat, quantile: float) -> ErrorSummary:
    if actual.dtype == expected.dtype and np.array_equal(actual, expected):
        return _measured_equal(actual.size, tolerance, stat)
    found = metrics.errors_between(actual, expected)
    absolute = metrics.error_statistics(found.absolute, quantile)
    relative = metrics.error_statistics(found.relative, quantile)
    if stat == "elemwise":
        passing_atol = metrics.passing_atol(found, tolerance.atol, tolerance.rtol)
        passing_rtol = metrics.passing_rtol(found, tolerance.atol, tolerance.rtol)
    elif found.broken:
        passing_atol = passing_rtol = None
    else:
        # A limit of 0 asks for equality, whatever the statistic: what differs needs one above it.
        least = metrics.LEAST if absolute.maximum > 0 else 0.0
        passing_atol = metrics.rounded_up(max(_of(absolute, stat), least))
        passing_rtol = metrics.rounded_up(max(_of(relative, stat), least))
    mismatching = int(metrics.outside(found, tolerance.atol, tolerance.rtol).sum())
    finite = np.isfinite(found.magnitude)
    return ErrorSummary(
        found.absolute.size,
        mismatching,
        found.broken,
        absolute,
        relative,
        metrics.worst(actual, expected, found.absolute),
        metrics.worst(actual, expected, found.relative),
        passing_atol,
        passing_rtol,
        _offending(actual, expected, found, tolerance) if mismatching else None,
        int(np.count_nonzero(found.absolute)),
        float(found.magnitude.max(initial=0, where=finite)),
    )


def _offending(actual: Array, expected: Array, found: metrics.Errors, tolerance: Tolerance) -> Element | None:
    """Of those that are farthest outside, as all are where nothing is allowed, the one with the greatest error."""
    times = metrics.shares(found, tolerance.atol, tolerance.rtol)
    farthest = float(times.max())
    one = metrics.worst(actual, expected, np.where(times == farthest, found.absolute, 0))
    return None if one is None else replace(one, error=farthest)


def _measured_equal(elements: int, tolerance: Tolerance, stat: Stat) -> ErrorSummary:
    """What is measured of equal tensors. Most are: nothing of their size is computed for them."""
    none = ErrorStatistics(0.0, 0.0, 0.0, 0.0)
    passing = (tolerance.atol, tolerance.rtol) if stat == "elemwise" else (0.0, 0.0)
    return ErrorSummary(elements, 0, 0, none, none, None, None, *passing)


def _of(statistics: ErrorStatistics, stat: Stat) -> float:
    by_name = {
        "max": statistics.maximum,
        "mean": statistics.mean,
        "median": statistics.median,
        "quantile": statistics.quantile,
    }
    return by_name[stat]


def _require_ranks(name: str, actual: Array, judged: Sequence[JudgedLimit]) -> None:
    """Raise DoesNotFit where indices are to be compared and none is looked at: that all of none fit says nothing."""
    if actual.size and any(one.limit.metric == "indices" and one.ranks == 0 for one in judged):
        raise errors.DoesNotFit(
            f"no index of output {name!r} of shape {list(actual.shape)} is compared: all may have moved so far",
            next_steps=["--index-tolerance 0"],
        )


def _reason(measured: ErrorSummary, asked: Criteria, tolerance: Tolerance, judged: Sequence[JudgedLimit]) -> str | None:
    if measured.broken:
        return f"{_elements(measured.broken, measured.elements)} NaN or infinite on one side only"
    reasons = [_beyond_tolerance(measured, tolerance, asked.stat)] if asked.tolerances_decide else []
    reasons += [_beyond_limit(one, measured) for one in judged]
    return "; ".join(filter(None, reasons)) or None


def _beyond_tolerance(measured: ErrorSummary, tolerance: Tolerance, stat: Stat) -> str | None:
    if stat == "elemwise":
        if measured.mismatching == 0:
            return None
        return f"{_elements(measured.mismatching, measured.elements)} outside the tolerances"
    absolute, relative = _of(measured.absolute, stat), _of(measured.relative, stat)
    if tolerance == Tolerance(0, 0) and measured.differing:
        return f"{_elements(measured.differing, measured.elements)} not equal, which tolerances of 0 ask for"
    if absolute <= tolerance.atol or relative <= tolerance.rtol:
        return None
    return f"{stat} errors are outside the tolerances: absolute {absolute:.3g}, relative {relative:.3g}"


def _beyond_limit(one: JudgedLimit, measured: ErrorSummary) -> str | None:
    if one.passed:
        return None
    if one.limit.metric == "cosine" and one.limit.value >= STRICTEST["cosine"]:
        return f"{_elements(measured.differing, measured.elements)} not equal, which cosine 1 asks for"
    if one.limit.metric == "indices":
        what = "indices" if one.limit.top is None else f"indices of the top {one.limit.top.k}"
        return f"{one.value:.0f} of {one.ranks} {what} are out of place"
    return f"{one.limit.metric} is outside its limit"


def _elements(some: int, everything: int) -> str:
    return f"{some} of {everything} elements {'is' if some == 1 else 'are'}"


def _measured_text(actual: Array, expected: Array) -> ErrorSummary:
    differ = metrics.differing(actual, expected).reshape(-1).astype(np.float64)
    counts = metrics.error_statistics(differ, DEFAULT_QUANTILE)
    worst = metrics.worst(actual, expected, differ)
    some = int(differ.sum())
    offending = None if worst is None else replace(worst, error=math.inf)
    return ErrorSummary(differ.size, some, 0, counts, counts, worst, worst, None, None, offending, some)


# Runs


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


@dataclass(frozen=True)
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
    counts = len(actual.iterations), len(expected.iterations)
    found = RunComparison(actual.runner, expected.runner, tuple(compared), *counts, complete)
    if found.passed and not found.elements:
        raise _only_empty(found)
    return found


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


# NaN and infinities


@dataclass(frozen=True)
class NotFinite:
    """An output that holds NaN or infinities: how many of each, where the first one is, and its value."""

    iteration: int
    name: str
    elements: int
    nan: int
    inf: int
    first: Index
    value: Scalar


def not_finite(result: RunnerResult) -> list[NotFinite]:
    """The outputs of a runner that hold NaN or infinities, in order."""
    return list(_not_finite(result))


def _not_finite(result: RunnerResult) -> Iterator[NotFinite]:
    for number, iteration in enumerate(result.iterations):
        for name, array in iteration.outputs.items():
            values = array if is_text(array) else metrics.numeric(array)
            if values.dtype.kind not in "fc":
                continue
            odd = ~np.isfinite(values)
            if odd.any():
                nan = int(np.isnan(values).sum())
                first = metrics.at(values, int(odd.reshape(-1).argmax()))
                inf = int(odd.sum()) - nan
                yield NotFinite(number, name, values.size, nan, inf, first, metrics.element(array, first))
            release(array)
