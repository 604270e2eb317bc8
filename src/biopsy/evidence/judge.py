"""From two tensors to one error: what was asked of outputs is asked of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.tolerance import Limits, Stats, Tolerance, Tolerances, asked_of
from biopsy.evidence.layers import TensorError
from biopsy.tensors.results import Array, release


@dataclass(frozen=True)
class Judge:
    """Tolerances, statistics and limits by the name of a tensor, "" for all, as in ``biopsy run``."""

    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: Limits = field(default_factory=Limits)

    def error(self, name: str, actual: Sequence[Array], expected: Sequence[Array]) -> TensorError:
        """The error of a tensor, one value per sample on both sides; memory of mapped files is given back."""
        return worst(
            self._one(name, number, left, right)
            for number, (left, right) in enumerate(zip(actual, expected, strict=True))
        )

    def _one(self, name: str, sample: int, actual: Array, expected: Array) -> TensorError:
        asked = asked_of(name, self.tolerances, self.stats, self.limits)
        compared = compare_output(name, actual, expected, asked, "brief")
        times = 0.0
        if compared.measured is None:
            times = math.inf
        elif compared.measured.absolute.maximum > 0 and not compared.passed:
            times = _times(actual, expected, asked.tolerance)
        release(actual, expected)
        return _made(name, sample, compared, times)


def _made(name: str, sample: int, compared: OutputComparison, times: float) -> TensorError:
    measured = compared.measured
    if measured is None:
        return TensorError(name, sample, compared.passed, compared.reason, math.inf, math.inf, times, None)
    absolute, relative = measured.absolute.maximum, measured.relative.maximum
    return TensorError(
        name, sample, compared.passed, compared.reason, absolute, relative, times, measured.worst_absolute
    )


def worst(found: Iterable[TensorError]) -> TensorError:
    """The worst of several errors; the first of them where they are alike."""
    return max(found, key=lambda one: one.rank)


def _times(actual: Array, expected: Array, tolerance: Tolerance) -> float:
    if metrics.is_text(actual):
        return math.inf
    found = metrics.errors_between(actual, expected)
    with np.errstate(all="ignore"):
        shares = found.absolute / (tolerance.atol + tolerance.rtol * found.magnitude)
    shares[np.isnan(shares)] = math.inf
    shares[found.absolute == 0] = 0
    return float(shares.max(initial=0))


@dataclass(frozen=True)
class Odd:
    """How many elements of a tensor are NaN and infinite, over all samples."""

    nan: int
    inf: int


def odd(values: Sequence[Array]) -> Odd | None:
    """The NaN and infinities of a tensor, one value per sample; None if there are none."""
    nan = inf = 0
    for value in values:
        if metrics.is_text(value):
            continue
        numbers = metrics.numeric(value)
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all():
            continue
        lost = int(np.isnan(numbers).sum())
        nan += lost
        inf += int((~np.isfinite(numbers)).sum()) - lost
    return Odd(nan, inf) if nan or inf else None
