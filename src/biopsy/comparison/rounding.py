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
from biopsy.comparison.mismatch_size import common_quantum, quantum_of
from biopsy.comparison.noise import NoiseComparison, compare_noise
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult

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
    times = _times(max((min(max(one.ratio, other.ratio), apart.ratio) for one, other, apart in sides), default=0.0))
    unexplained = [apart for one, other, apart in sides if not _is_rounding(one, other, apart)]
    if unexplained and not _turned_over(unexplained, actual, expected, exact, perturbed):
        return Rounding("bug", times)
    if missing:
        return Rounding("unknown", reason=f"{missing[0]!r} has no value in float64")
    alike = any(not (one.passed and other.passed) for one, other, apart in sides if apart.passed)
    return Rounding("rounding", None if unexplained else times, WRONG_ALIKE if alike else "")


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
        if not comparable or any(is_text(side) for side in sides):
            found[name] = actual[name]
            continue
        left, right, true = (metrics.numeric(side) for side in sides)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.subtract(left, right, dtype=np.result_type(left, right, np.float64))
            found[name] = true + np.where(np.isfinite(apart), apart, 0)
    return found


def _turned_over(
    unexplained: Collection[NoiseComparison],
    actual: RunnerResult,
    expected: RunnerResult,
    exact: RunnerResult,
    perturbed: Perturbed,
) -> bool:
    """Whether every difference is one that perturbed inputs make too."""
    tracked = [
        _Turning(*(one.iterations[output.iteration].outputs[output.name] for one in (actual, expected, exact)))
        for output in unexplained
    ]
    if not all(one.comparable for one in tracked):
        return False
    for run in perturbed():
        for output, one in zip(unexplained, tracked, strict=True):
            one.see(run.iterations[output.iteration].outputs[output.name])
        if all(one.explained for one in tracked):
            return True
    return False


class _Turning:
    """One output: what differs between two sides, and what perturbed inputs have changed of it so far."""

    def __init__(self, actual: Array, expected: Array, exact: Array) -> None:
        shapes = {actual.shape, expected.shape, exact.shape}
        self.comparable = len(shapes) == 1 and not any(map(is_text, (actual, expected, exact)))
        if not self.comparable:
            return
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
