"""Measures the mismatches between two runs: their share, bias and size, and whether they are only rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from biopsy.comparison import differences, metrics
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.differences import ErrorSummary
from biopsy.comparison.metrics import Bools, Errors
from biopsy.comparison.mismatch import MOST_OF_A_KIND, Kind, Mismatch, Rounding, Special, most_telling
from biopsy.comparison.noise import NoiseComparison, compare_noise
from biopsy.comparison.runs import RunComparison
from biopsy.tensors.results import Array, Iteration, RunnerResult, release
from biopsy.tensors.types import is_text

_FEW_VALUES = 256
"""The greatest number of distinct values after quantization to eight bits."""

_FIRST_LOOK = 4096
_OFF_GRID = 1e-3
_SAME_GRID = 1e-2


def mismatches_of(output: OutputComparison, actual: Array, expected: Array) -> tuple[Mismatch, ...]:
    """The mismatches of an output, one of each kind; that of kind "mismatch" is measured. None if it passes."""
    measured, forms = output.measured, output.forms
    if output.passed or measured is None:
        return () if output.passed else forms
    mismatches = forms + tuple(
        Mismatch(output=output.name, kind=kind, elements=measured.elements, wrong=wrong)
        for kind, wrong in (one_sided(actual, expected) if measured.broken else {}).items()
    )
    limits_fail = any(not limit.passed for limit in output.judged)
    if not mismatches or measured.mismatching > measured.broken or limits_fail:
        mismatches += (_measured(output, measured, actual, expected),)
    return mismatches


def one_sided(actual: Array, expected: Array) -> Mapping[Kind, int]:
    """How many elements are NaN or an infinity on one side only, by kind; what ``actual`` holds counts first."""
    left, right = metrics.numeric(actual), metrics.numeric(expected)
    differ = metrics.differing(left, right)
    counts: dict[Kind, int] = {}
    for values, kinds in ((left, _GIVEN), (right, _EXPECTED)):
        for special, kind in kinds.items():
            found = differ & metrics.is_special(values, special)
            differ = differ & ~found
            counts[kind] = int(found.sum())
    return {kind: times for kind, times in counts.items() if times}


_GIVEN: Mapping[Special, Kind] = {"nan": "nan-mismatch", "+inf": "+inf-mismatch", "-inf": "-inf-mismatch"}
_EXPECTED: Mapping[Special, Kind] = {"nan": "nan-expected", "+inf": "+inf-expected", "-inf": "-inf-expected"}


def common_quantum(actual: Array, expected: Array) -> float | None:
    """The distance between neighbouring values of two discrete tensors; None if one is continuous or has another grid.

    An error that changes the grid, such as a factor, is then measured like any other error.
    """
    sides = quantum_of(actual), quantum_of(expected)
    if sides[0] is None or sides[1] is None:
        return None
    return sides[1] if abs(sides[0] - sides[1]) <= _SAME_GRID * sides[1] else None


def quantum_of(values: Array) -> float | None:
    """The distance between neighbouring values of a discrete tensor; None if it seems continuous.

    Integers and booleans of any type are discrete, and so are few values on a grid, as from DequantizeLinear: at most
    256 distinct ones, each at least twice on average.
    """
    if values.dtype.kind in "biu":
        return 1.0
    if is_text(values):
        return 0.0
    numbers = metrics.numeric(values).reshape(-1)
    if numbers.dtype.kind != "f" or numbers.size == 0:
        return 1.0 if numbers.dtype.kind in "iu" else None
    if _is_whole(numbers[:_FIRST_LOOK]) and _is_whole(numbers):
        return 1.0
    if np.unique(numbers[:_FIRST_LOOK]).size > _FEW_VALUES:
        return None
    distinct = np.unique(numbers[np.isfinite(numbers)]).astype(np.float64)
    if not 3 <= distinct.size <= _FEW_VALUES or numbers.size < 2 * distinct.size:
        return None
    gaps = np.diff(distinct)
    step = float(gaps.min())
    if step < _OFF_GRID * float(np.abs(distinct).max()):
        return None
    steps = gaps / step
    return step if bool((np.abs(steps - np.rint(steps)) < _OFF_GRID * 10).all()) else None


def _is_whole(values: Array) -> bool:
    finite = values[np.isfinite(values)]
    if finite.size < 2 or not bool((finite == np.rint(finite)).all()):
        return False
    return bool(finite.any()) and float(np.abs(finite).max()) < 2.0**22


def _measured(output: OutputComparison, measured: ErrorSummary, actual: Array, expected: Array) -> Mismatch:
    if is_text(actual):
        return Mismatch(output=output.name, elements=measured.elements, wrong=measured.mismatching, quantum=0.0)
    errors = metrics.errors_between(actual, expected)
    finite = np.where(np.isfinite(errors.absolute), errors.absolute, 0)
    wrong = metrics.outside(errors, output.tolerance.atol, output.tolerance.rtol) & np.isfinite(errors.absolute)
    if not wrong.any():  # only a limit of a metric fails
        wrong = finite > 0
    left, right = metrics.numeric(actual).reshape(-1)[wrong], metrics.numeric(expected).reshape(-1)[wrong]
    if left.dtype.kind == "c" or right.dtype.kind == "c":
        left, right = np.abs(left), np.abs(right)
    worst = metrics.worst(actual, expected, finite)
    floating = [side.dtype for side in (actual, expected) if metrics.numeric(side).dtype.kind in "fc"]
    rounding = max(map(differences.unit_roundoff, floating), default=0.0) * metrics.greatest_finite(errors.magnitude)
    return Mismatch(
        output=output.name,
        elements=measured.elements,
        wrong=int(wrong.sum()),
        above=int((left > right).sum()),
        error=None if worst is None else worst.error,
        index=() if worst is None else worst.index,
        actual=None if worst is None else _finite_or_none(worst.actual),
        expected=None if worst is None else _finite_or_none(worst.expected),
        times_tolerance=_finite_or_none(_times_tolerance(output, measured, errors, wrong)),
        times_rounding=_finite_or_none(float(finite.max(initial=0) / rounding)) if rounding else None,
        quantum=common_quantum(actual, expected),
        passing_atol=measured.passing_atol,
    )


def _times_tolerance(output: OutputComparison, measured: ErrorSummary, errors: Errors, wrong: Bools) -> float:
    """The greatest quotient of a measured and an allowed value, over all criteria that fail; inf without any."""
    quotients, tolerance = [], output.tolerance
    for judged in (judged for judged in output.judged if not judged.passed):
        metric, value, limit = judged.limit.metric, judged.value, judged.limit.value
        if metric in ("psnr", "snr"):
            quotients.append(float(10.0 ** min(300.0, (limit - value) / 20)))
        elif metric == "cosine":
            quotients.append(math.sqrt(_divided(max(0.0, 1 - value), max(0.0, 1 - limit))))
        elif metric in ("l2", "ulp"):
            quotients.append(_divided(value, limit))
    if output.tolerances_decide and output.stat == "elemwise" and wrong.any():
        allowed = tolerance.atol + tolerance.rtol * errors.magnitude[wrong]
        with np.errstate(divide="ignore"):
            quotients.append(float(np.divide(errors.absolute[wrong], allowed).max()))
    elif output.tolerances_decide and output.stat != "elemwise":
        sides = (measured.absolute, tolerance.atol), (measured.relative, tolerance.rtol)
        quotients.append(min(_divided(side.of(output.stat), limit) for side, limit in sides))
    return max((quotient for quotient in quotients if not math.isnan(quotient)), default=math.inf)


def _divided(value: float, limit: float) -> float:
    return value / limit if limit > 0 else math.inf


def _finite_or_none(value: Any) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # float64 cannot hold every int64
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


_MOST_MEASURED = 64


def run_mismatches(actual: RunnerResult, expected: RunnerResult, comparison: RunComparison) -> tuple[Mismatch, ...]:
    """The greatest mismatches of each kind in a failing comparison."""
    mismatches = [Mismatch(output=name, kind="missing-output") for name in comparison.missing]
    for number, output in comparison.failures[:_MOST_MEASURED]:
        left, right = (side.iterations[number].outputs[output.name] for side in (actual, expected))
        mismatches += mismatches_of(output, left, right)
        release(left, right)
    return most_telling(mismatches, MOST_OF_A_KIND)


WRONG_ALIKE = "both sides are wrong by more than that, in the same way: --compare-with noise shows it"

_AS_GREAT = 3.0
"""A difference may be this many times the changes in perturbed runs, since there are only a few of them."""

Perturbed = Callable[[], Iterator[RunnerResult]]
"""Yields a few runs like the exact one, with what may have been rounded changed by the size of a rounding."""


def explained(
    actual: RunnerResult, expected: RunnerResult, plain: RunnerResult, exact: RunnerResult, perturbed: Perturbed
) -> Rounding:
    """Whether rounding explains that ``actual`` differs from ``expected``; all four runs have the outputs that differ.

    Either side may be wrong, so both must be within rounding of the exact values, or their difference within rounding
    of zero: two engines that fuse the same nodes in the same wrong way do not differ.

    A step (Floor, Greater, ArgMax, QuantizeLinear) turns a rounding error into a great one or none. So other
    differences are compared with ``perturbed`` runs: they may be as great as the changes there (a backward error,
    Wilkinson 1963, of rounding size), and an element of a discrete output may differ if it changes in one of these
    runs.

    Raises CannotCompare if the runs have no output in common.
    """
    reports = [compare_noise(side, plain, exact) for side in (actual, expected, _difference(actual, expected, exact))]
    verdicts: set[str] = {output.verdict for report in reports for output in report.outputs}
    if "unknown" in verdicts:
        return Rounding("unknown", reason="a plain run or float64 gives nothing to judge by")
    missing = sorted({name for report in reports for name in report.only_suspect})
    sides = list(zip(*(report.outputs for report in reports), strict=True))
    ratios = (min(max(left.ratio, right.ratio), difference.ratio) for left, right, difference in sides)
    times = _finite_or_none(max(ratios, default=0.0))
    unexplained = [
        difference for left, right, difference in sides if not (difference.passed or (left.passed and right.passed))
    ]
    if unexplained and not _is_perturbation(unexplained, actual, expected, exact, perturbed):
        return Rounding("bug", times)
    if missing:
        return Rounding("unknown", reason=f"{missing[0]!r} has no value in float64")
    alike = any(not (left.passed and right.passed) for left, right, difference in sides if difference.passed)
    return Rounding("rounding", None if unexplained else times, WRONG_ALIKE if alike else "")


def only(side: RunnerResult, names: Collection[str]) -> RunnerResult:
    """A run with only these outputs."""
    return side.with_outputs(lambda _, each: {name: value for name, value in each.outputs.items() if name in names})


def _difference(actual: RunnerResult, expected: RunnerResult, exact: RunnerResult) -> RunnerResult:
    """A run whose error is the difference of the two sides."""
    iterations = []
    for run in zip(actual.iterations, expected.iterations, exact.iterations, strict=False):
        outputs = dict(run[0].outputs)
        for name in outputs:
            sides = [side.outputs[name] for side in run if name in side.outputs]
            if len(sides) < 3 or len({side.shape for side in sides}) > 1 or any(map(is_text, sides)):
                continue
            left, right, true = map(metrics.numeric, sides)
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.subtract(left, right, dtype=np.result_type(left, right, np.float64))
                outputs[name] = true + np.where(np.isfinite(difference), difference, 0)
            one_sided = metrics.differing(left, right) & ~np.isfinite(difference)  # NaN less a number is no NaN
            outputs[name] = np.where(one_sided, np.where(np.isfinite(true), np.inf, 0), outputs[name])
        iterations.append(Iteration(outputs))
    return RunnerResult("the difference", tuple(iterations))


def _is_perturbation(
    unexplained: Collection[NoiseComparison],
    actual: RunnerResult,
    expected: RunnerResult,
    exact: RunnerResult,
    perturbed: Perturbed,
) -> bool:
    """Whether perturbed runs have differences like all of these."""
    outputs = []
    for output in unexplained:
        sides = [run.iterations[output.iteration].outputs[output.name] for run in (actual, expected, exact)]
        if len({side.shape for side in sides}) > 1 or any(map(is_text, sides)):
            return False
        outputs.append(_PerturbedOutput(*sides))
    for run in perturbed():
        for output, perturbed_output in zip(unexplained, outputs, strict=True):
            perturbed_output.add(run.iterations[output.iteration].outputs[output.name])
        if all(each.explains_difference for each in outputs):
            return True
    return False


class _PerturbedOutput:
    """The difference between two sides of one output, and the changes in perturbed runs so far."""

    def __init__(self, actual: Array, expected: Array, exact: Array) -> None:
        self._exact = exact
        self._difference = metrics.errors_between(actual, expected).absolute
        self._unexplained = self._difference > 0
        self._discrete = quantum_of(exact) is not None and common_quantum(actual, expected) is not None
        self._greatest = self._mean_square = 0.0

    def add(self, values: Array) -> None:
        """Take the output of a perturbed run into account."""
        if values.shape != self._exact.shape:
            return
        changes = metrics.errors_between(values, self._exact).absolute
        changes = np.where(np.isfinite(changes), changes, 0)  # a value outside an operator's domain says no size
        self._unexplained &= changes == 0
        self._greatest = max(self._greatest, float(changes.max(initial=0)))
        self._mean_square = max(self._mean_square, _mean_square(changes))

    @property
    def explains_difference(self) -> bool:
        """Whether the changes are as great as the difference.

        If the output is discrete, each element that differs must change.
        """
        greatest, mean_square = float(self._difference.max(initial=0)), _mean_square(self._difference)
        if greatest > _AS_GREAT * self._greatest:
            return False
        if self._discrete:
            return not self._unexplained.any()
        return mean_square <= _AS_GREAT**2 * self._mean_square


def _mean_square(values: metrics.Floats) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(values**2)) if values.size else 0.0
