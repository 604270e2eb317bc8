"""Measuring how two runs differ beyond a verdict: share, bias and size of each mismatch, and whether it is only
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from biopsy.comparison import differences, metrics
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.differences import ErrorSummary
from biopsy.comparison.metrics import Bools, Errors
from biopsy.comparison.mismatch import Kind, Mismatch, Rounding, most_telling
from biopsy.comparison.noise import NoiseComparison, compare_noise
from biopsy.comparison.runs import RunComparison
from biopsy.tensors.results import Array, Iteration, RunnerResult, release
from biopsy.tensors.types import is_text

_FEW_VALUES = 256
"""So many distinct values at most has what was quantized to eight bits."""

_FIRST_LOOK = 4096
_OFF_GRID = 1e-3
_SAME_GRID = 1e-2


def mismatches_of(output: OutputComparison, actual: Array, expected: Array) -> tuple[Mismatch, ...]:
    """How an output that fails differs: one mismatch for each kind, the one with numbers measured."""
    measured = output.measured
    return tuple(
        Mismatch(output=output.name, kind=kind)
        if measured is None
        else _measured(output, measured, actual, expected)
        if kind == "mismatch"
        else Mismatch(output=output.name, kind=kind, elements=measured.elements, wrong=measured.broken)
        for kind in kinds_of(output)
    )


def kinds_of(output: OutputComparison) -> tuple[Kind, ...]:
    """The kinds of mismatch that an output shows; none if it passes."""
    measured = output.measured
    if output.passed:
        return ()
    if measured is None:
        return ("shape-mismatch",) if output.actual_shape != output.expected_shape else ("type-mismatch",)
    if not measured.broken:
        return ("mismatch",)
    more = measured.mismatching > measured.broken or any(not one.passed for one in output.judged)
    return ("not-finite-mismatch", "mismatch") if more else ("not-finite-mismatch",)


def common_quantum(actual: Array, expected: Array) -> float | None:
    """The distance between neighbouring values of two discrete tensors; None if one is continuous, or on another grid.

    What was multiplied by some factor is no step: it is measured as any other error.
    """
    sides = quantum_of(actual), quantum_of(expected)
    if sides[0] is None or sides[1] is None:
        return None
    return sides[1] if abs(sides[0] - sides[1]) <= _SAME_GRID * sides[1] else None


def quantum_of(values: Array) -> float | None:
    """The distance between neighbouring values of a discrete tensor; None if it is continuous, as far as one can tell.

    Discrete are whole numbers and truth values, whatever type holds them, and few values on a grid, as from
    DequantizeLinear: at most 256 distinct ones, each at least twice on average.
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
    if not wrong.any():  # a limit of another figure is what fails
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
    """The greatest quotient of what is measured and what is allowed, of all that decides; inf where nothing is."""
    times, tolerance = [], output.tolerance
    for one in (one for one in output.judged if not one.passed):
        metric, value, limit = one.limit.metric, one.value, one.limit.value
        if metric in ("psnr", "snr"):
            times.append(float(10.0 ** min(300.0, (limit - value) / 20)))
        elif metric == "cosine":
            times.append(math.sqrt(_divided(max(0.0, 1 - value), max(0.0, 1 - limit))))
        elif metric in ("l2", "ulp"):
            times.append(_divided(value, limit))
    if output.tolerances_decide and output.stat == "elemwise" and wrong.any():
        allowed = tolerance.atol + tolerance.rtol * errors.magnitude[wrong]
        with np.errstate(divide="ignore"):
            times.append(float(np.divide(errors.absolute[wrong], allowed).max()))
    elif output.tolerances_decide and output.stat != "elemwise":
        sides = (measured.absolute, tolerance.atol), (measured.relative, tolerance.rtol)
        times.append(min(_divided(side.of(output.stat), limit) for side, limit in sides))
    return max((quotient for quotient in times if not math.isnan(quotient)), default=math.inf)


def _divided(value: float, limit: float) -> float:
    return value / limit if limit > 0 else math.inf


def _finite_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


# How the outputs of two runs differ, as a reduction is told.

_MOST_MEASURED = 64
_MOST_TOLD = 8


def run_mismatches(actual: RunnerResult, expected: RunnerResult, compared: RunComparison) -> tuple[Mismatch, ...]:
    """How the outputs of a comparison that fails differ: the greatest mismatches of each kind."""
    found = [Mismatch(output=name, kind="missing-output") for name in compared.missing]
    for number, output in compared.failures[:_MOST_MEASURED]:
        left, right = (side.iterations[number].outputs[output.name] for side in (actual, expected))
        found += mismatches_of(output, left, right)
        release(left, right)
    return most_telling(found, _MOST_TOLD)


# Whether the difference of two runs is only rounding: both are held against float64, and their difference is too.
#
# Two engines may differ because either is wrong, and golden values may be what is wrong: so both sides must be within
# rounding of the exact values, or their difference within rounding of nothing. The latter matters where both are
# wrong alike, as two engines are that fuse the same nodes in the same wrong way.

WRONG_ALIKE = "both sides are wrong by more than that, in the same way: --compare-with noise shows it"

_AS_GREAT = 3.0
"""How many times the changes by perturbed inputs a difference may be: only a few of them are looked at."""

Perturbed = Callable[[], Iterator[RunnerResult]]
"""The exact run, with inputs changed as rounding may change them, a few times."""


def explained(
    actual: RunnerResult, expected: RunnerResult, plain: RunnerResult, exact: RunnerResult, perturbed: Perturbed
) -> Rounding:
    """Whether rounding explains that ``actual`` differs from ``expected``; all four hold the outputs that differ.

    A step, as of Floor, Greater, ArgMax or QuantizeLinear, turns an error of rounding size into a great one, or into
    none. So what is open then is held against exact runs whose inputs are ``perturbed`` by some roundings: the
    difference may be as great as what they change (a backward error, Wilkinson 1963, of rounding size); and elements
    of a discrete output may differ where one of them has another value too.

    Raises CannotCompare if the runs have no output in common.
    """
    reports = [compare_noise(side, plain, exact) for side in (actual, expected, _difference(actual, expected, exact))]
    verdicts: set[str] = {output.verdict for report in reports for output in report.outputs}
    if "unknown" in verdicts:
        return Rounding("unknown", reason="plain float32 or float64 gives nothing to judge by")
    missing = sorted({name for report in reports for name in report.only_suspect})
    sides = list(zip(*(report.outputs for report in reports), strict=True))
    ratios = (min(max(one.ratio, other.ratio), apart.ratio) for one, other, apart in sides)
    times = _finite_or_none(max(ratios, default=0.0))
    unexplained = [apart for one, other, apart in sides if not (apart.passed or (one.passed and other.passed))]
    if unexplained and not _turned_over(unexplained, actual, expected, exact, perturbed):
        return Rounding("bug", times)
    if missing:
        return Rounding("unknown", reason=f"{missing[0]!r} has no value in float64")
    alike = any(not (one.passed and other.passed) for one, other, apart in sides if apart.passed)
    return Rounding("rounding", None if unexplained else times, WRONG_ALIKE if alike else "")


def only(side: RunnerResult, names: Collection[str]) -> RunnerResult:
    """What a runner gave for some outputs."""
    return side.with_outputs(lambda _, each: {name: value for name, value in each.outputs.items() if name in names})


def _difference(actual: RunnerResult, expected: RunnerResult, exact: RunnerResult) -> RunnerResult:
    """A run that errs by as much as the two sides differ."""
    iterations = []
    for run in zip(actual.iterations, expected.iterations, exact.iterations, strict=False):
        outputs = dict(run[0].outputs)
        for name in outputs:
            sides = [side.outputs[name] for side in run if name in side.outputs]
            if len(sides) < 3 or len({side.shape for side in sides}) > 1 or any(map(is_text, sides)):
                continue
            left, right, true = map(metrics.numeric, sides)
            with np.errstate(invalid="ignore", over="ignore"):
                apart = np.subtract(left, right, dtype=np.result_type(left, right, np.float64))
                outputs[name] = true + np.where(np.isfinite(apart), apart, 0)
        iterations.append(Iteration(outputs))
    return RunnerResult("the difference", tuple(iterations))


def _turned_over(
    unexplained: Collection[NoiseComparison],
    actual: RunnerResult,
    expected: RunnerResult,
    exact: RunnerResult,
    perturbed: Perturbed,
) -> bool:
    """Whether every difference is one that perturbed inputs make too."""
    turnings = []
    for output in unexplained:
        sides = [run.iterations[output.iteration].outputs[output.name] for run in (actual, expected, exact)]
        if len({side.shape for side in sides}) > 1 or any(map(is_text, sides)):
            return False
        turnings.append(_Turning(*sides))
    for run in perturbed():
        for output, turning in zip(unexplained, turnings, strict=True):
            turning.see(run.iterations[output.iteration].outputs[output.name])
        if all(turning.explained for turning in turnings):
            return True
    return False


class _Turning:
    """One output: what differs between two sides, and what perturbed inputs have changed of it so far."""

    def __init__(self, actual: Array, expected: Array, exact: Array) -> None:
        self._exact = exact
        self._apart = metrics.errors_between(actual, expected).absolute
        self._open = self._apart > 0
        self._discrete = quantum_of(exact) is not None and common_quantum(actual, expected) is not None
        self._greatest = self._mean_square = 0.0

    def see(self, values: Array) -> None:
        """Look at what perturbed inputs give."""
        if values.shape != self._exact.shape:
            return
        changes = metrics.errors_between(values, self._exact).absolute
        changes = np.where(np.isfinite(changes), changes, 0)  # what leaves an operator's domain tells of no size
        self._open &= changes == 0
        self._greatest = max(self._greatest, float(changes.max(initial=0)))
        self._mean_square = max(self._mean_square, _mean_square(changes))

    @property
    def explained(self) -> bool:
        """Whether the difference is no more than that."""
        if self._discrete:
            return not self._open.any()
        apart = float(self._apart.max(initial=0)), _mean_square(self._apart)
        return apart[0] <= _AS_GREAT * self._greatest and apart[1] <= _AS_GREAT**2 * self._mean_square


def _mean_square(values: metrics.Floats) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(values**2)) if values.size else 0.0
