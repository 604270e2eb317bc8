"""Measuring how two tensors differ beyond a verdict: share, bias, and size by tolerance, by rounding, by steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from biopsy.comparison import metrics, similarity
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.metrics import Bools, Errors, Floats
from biopsy.comparison.mismatch import Kind, Mismatch
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array

_FEW_VALUES = 256
"""So many distinct values at most has what was quantized to eight bits."""

_FIRST_LOOK = 4096
_OFF_GRID = 1e-3
_SAME_GRID = 1e-2


def mismatches_of(output: OutputComparison, actual: Array, expected: Array) -> tuple[Mismatch, ...]:
    """How an output that fails differs: one mismatch for each kind, the one with numbers measured."""
    return tuple(
        _measured(output, actual, expected) if kind == "mismatch" else _named(output, kind) for kind in kinds_of(output)
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
    return _step(np.unique(numbers[np.isfinite(numbers)]).astype(np.float64), numbers.size)


def _is_whole(values: Array) -> bool:
    finite = values[np.isfinite(values)]
    if finite.size < 2 or not bool((finite == np.rint(finite)).all()):
        return False
    return bool(finite.any()) and float(np.abs(finite).max()) < 2.0**22


def _step(distinct: Floats, elements: int) -> float | None:
    if not 3 <= distinct.size <= _FEW_VALUES or elements < 2 * distinct.size:
        return None
    gaps = np.diff(distinct)
    step = float(gaps.min())
    if step < _OFF_GRID * float(np.abs(distinct).max()):
        return None
    steps = gaps / step
    return step if bool((np.abs(steps - np.rint(steps)) < _OFF_GRID * 10).all()) else None


def _named(output: OutputComparison, kind: Kind) -> Mismatch:
    measured = output.measured
    if measured is None:
        return Mismatch(output=output.name, kind=kind)
    return Mismatch(output=output.name, kind=kind, elements=measured.elements, wrong=measured.broken)


def _measured(output: OutputComparison, actual: Array, expected: Array) -> Mismatch:
    measured = output.measured
    assert measured is not None
    if is_text(actual):
        return Mismatch(output=output.name, elements=measured.elements, wrong=measured.mismatching, quantum=0.0)
    errors = metrics.errors_between(actual, expected)
    finite = np.where(np.isfinite(errors.absolute), errors.absolute, 0)
    wrong = metrics.outside(errors, output.tolerance.atol, output.tolerance.rtol) & np.isfinite(errors.absolute)
    if not wrong.any():  # a limit of another figure is what fails
        wrong = finite > 0
    worst = metrics.worst(actual, expected, finite)
    return Mismatch(
        output=output.name,
        elements=measured.elements,
        wrong=int(wrong.sum()),
        above=_above(actual, expected, wrong),
        error=None if worst is None else worst.error,
        index=() if worst is None else worst.index,
        actual=None if worst is None else _real(worst.actual),
        expected=None if worst is None else _real(worst.expected),
        times_tolerance=_finite_or_none(_times_tolerance(output, errors, wrong)),
        times_rounding=_times_rounding(actual, expected, errors, finite),
        quantum=common_quantum(actual, expected),
        passing_atol=measured.passing_atol,
    )


def _above(actual: Array, expected: Array, wrong: Bools) -> int:
    left, right = metrics.numeric(actual).reshape(-1)[wrong], metrics.numeric(expected).reshape(-1)[wrong]
    if left.dtype.kind == "c" or right.dtype.kind == "c":
        left, right = np.abs(left), np.abs(right)
    return int((left > right).sum())


def _times_tolerance(output: OutputComparison, errors: Errors, wrong: Bools) -> float:
    """The greatest quotient of what is measured and what is allowed, of all that decides; inf where nothing is."""
    found = [_times_limit(one.limit.metric, one.value, one.limit.value) for one in output.judged if not one.passed]
    measured, tolerance = output.measured, output.tolerance
    assert measured is not None
    if output.tolerances_decide and output.stat == "elemwise" and wrong.any():
        allowed = tolerance.atol + tolerance.rtol * errors.magnitude[wrong]
        with np.errstate(divide="ignore"):
            found.append(float(np.divide(errors.absolute[wrong], allowed).max()))
    elif output.tolerances_decide and output.stat != "elemwise":
        statistic = {"max": "maximum"}.get(output.stat, output.stat)
        sides = (measured.absolute, tolerance.atol), (measured.relative, tolerance.rtol)
        found.append(min(_divided(getattr(side, statistic), limit) for side, limit in sides))
    return max((one for one in found if not math.isnan(one)), default=math.inf)


def _times_limit(metric: str, value: float, limit: float) -> float:
    if metric in ("psnr", "snr"):
        return float(10.0 ** min(300.0, (limit - value) / 20))
    if metric == "cosine":
        return math.sqrt(_divided(max(0.0, 1 - value), max(0.0, 1 - limit)))
    return _divided(value, limit) if metric in ("l2", "ulp") else math.nan


def _divided(value: float, limit: float) -> float:
    return value / limit if limit > 0 else math.inf


def _times_rounding(actual: Array, expected: Array, errors: Errors, finite: Floats) -> float | None:
    kinds = [similarity.unit_roundoff(side.dtype) for side in (actual, expected) if _rounds(side)]
    magnitude = errors.magnitude[np.isfinite(errors.magnitude)]
    greatest = float(magnitude.max(initial=0))
    if not any(kinds) or greatest == 0:
        return None
    return _finite_or_none(float(finite.max(initial=0)) / (max(kinds) * greatest))


def _rounds(side: Array) -> bool:
    return metrics.numeric(side).dtype.kind in "fc"


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
