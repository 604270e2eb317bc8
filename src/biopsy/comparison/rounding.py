"""Whether the difference of two runs is only rounding: both are held against float64, and their difference is too.

Two engines may differ because either is wrong, and golden values may be what is wrong: so both sides must be within
rounding of the exact values, or their difference within rounding of nothing. The latter matters where both are wrong
alike, as two engines are that fuse the same nodes in the same wrong way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.mismatch_size import quantum_of
from biopsy.comparison.noise import NoiseComparison, compare_noise
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult

WRONG_ALIKE = "both sides are wrong by more than that, in the same way: --compare-with noise shows it"

Perturbed = Callable[[], Iterator[RunnerResult]]
"""The exact run, with inputs changed as rounding may change them, a few times."""


def explained(
    actual: RunnerResult, expected: RunnerResult, plain: RunnerResult, exact: RunnerResult, perturbed: Perturbed
) -> Rounding:
    """Whether rounding explains that ``actual`` differs from ``expected``; all four hold the outputs that differ.

    Where an output is discrete, an error of rounding size is seen as a whole step, or not at all. There an element
    counts as rounded if the exact run gives another value too when its inputs are ``perturbed``.

    Raises CannotCompare if the runs have no output in common.
    """
    reports = [compare_noise(side, plain, exact) for side in (actual, expected, _difference(actual, expected, exact))]
    missing = sorted({name for report in reports for name in report.only_suspect})
    sides = list(zip(*(report.outputs for report in reports), strict=True))
    open_ones = [side for side in sides if not _is_rounding(*side)]
    times = _times(max((min(max(one.ratio, other.ratio), apart.ratio) for one, other, apart in sides), default=0.0))
    if open_ones and not _turned_over([one for one, _, _ in open_ones], actual, expected, exact, perturbed):
        return Rounding("bug", times)
    if missing:
        return Rounding("unknown", reason=f"{missing[0]!r} has no value in float64")
    alike = any(not (one.passed and other.passed) for one, other, apart in sides if apart.passed)
    return Rounding("rounding", None if open_ones else times, WRONG_ALIKE if alike else "")


def only(side: RunnerResult, names: Collection[str]) -> RunnerResult:
    """What a runner gave for some outputs."""
    kept = (Iteration({name: value for name, value in one.outputs.items() if name in names}) for one in side.iterations)
    return replace(side, iterations=tuple(kept))


def _is_rounding(one: NoiseComparison, other: NoiseComparison, apart: NoiseComparison) -> bool:
    return apart.passed or (one.passed and other.passed)


def _times(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


def _difference(actual: RunnerResult, expected: RunnerResult, exact: RunnerResult) -> RunnerResult:
    """A run that errs by as much as the two sides differ."""
    triples = zip(actual.iterations, expected.iterations, exact.iterations, strict=False)
    return RunnerResult("the difference", tuple(Iteration(_moved(*(one.outputs for one in each))) for each in triples))


def _moved(actual: Feed, expected: Feed, exact: Feed) -> dict[str, Array]:
    found = {}
    for name in actual:
        sides = [one[name] for one in (actual, expected, exact) if name in one]
        comparable = len(sides) == 3 and len({side.shape for side in sides}) == 1
        if not comparable or any(metrics.is_text(side) for side in sides):
            found[name] = actual[name]
            continue
        left, right, true = (metrics.numeric(side) for side in sides)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.subtract(left, right, dtype=np.result_type(left, right, np.float64))
            found[name] = true + np.where(np.isfinite(apart), apart, 0)
    return found


def _turned_over(
    outputs: Collection[NoiseComparison],
    actual: RunnerResult,
    expected: RunnerResult,
    exact: RunnerResult,
    perturbed: Perturbed,
) -> bool:
    """Whether all outputs are discrete, and every element that differs also turns over when rounding is perturbed."""
    wrong = {}
    for output in outputs:
        left, right, true = (one.iterations[output.iteration].outputs[output.name] for one in (actual, expected, exact))
        if left.shape != true.shape or quantum_of(true) is None or quantum_of(right) is None:
            return False
        wrong[output.iteration, output.name] = np.asarray(left != right)
    for run in perturbed():
        for (number, name), places in wrong.items():
            values, true = (one.iterations[number].outputs[name] for one in (run, exact))
            if values.shape == true.shape:
                np.logical_and(places, values == true, out=places)
        if not any(places.any() for places in wrong.values()):
            return True
    return False
