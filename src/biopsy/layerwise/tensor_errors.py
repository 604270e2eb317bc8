"""From two tensors to one error: what was asked of outputs is asked of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.metrics import Element
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerance, Tolerances, asked_of
from biopsy.layerwise.findings import TensorError
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array, release


@dataclass(frozen=True)
class Judge:
    """Tolerances, statistics and limits by the name of a tensor, "" for all, as in ``biopsy run``."""

    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)

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
            outside = compared.measured.offending
            times = outside.error if outside is not None else _times(actual, expected, compared.tolerance)
        release(actual, expected)
        return _made(name, sample, compared, times)


def _made(name: str, sample: int, compared: OutputComparison, times: float) -> TensorError:
    measured = compared.measured
    if measured is None:
        return TensorError(name, sample, compared.passed, compared.reason, math.inf, math.inf, times, None)
    absolute, relative = measured.absolute.maximum, measured.relative.maximum
    return TensorError(name, sample, compared.passed, compared.reason, absolute, relative, times, _offending(compared))


def _offending(compared: OutputComparison) -> Element | None:
    """The element that fails, the worst first; where nothing does, the one with the greatest difference."""
    measured = compared.measured
    by_limit = [one.worst for one in compared.judged if not one.passed]
    by_tolerance = [measured.offending] if measured is not None and compared.tolerances_decide else []
    greatest = [measured.worst_absolute] if measured is not None else []
    failing = [*by_tolerance, *by_limit] if not compared.passed else []
    return next((one for one in [*failing, *greatest] if one is not None), None)


def worst(found: Iterable[TensorError]) -> TensorError:
    """The worst of several errors; the first of them where they are alike."""
    return max(found, key=lambda one: one.rank)


def _times(actual: Array, expected: Array, tolerance: Tolerance) -> float:
    found = metrics.errors_between(actual, expected)
    return float(metrics.shares(found, tolerance.atol, tolerance.rtol).max(initial=0))


@dataclass(frozen=True)
class Odd:
    """How many elements of a tensor are NaN and infinite, over all samples."""

    nan: int
    inf: int


def odd(values: Sequence[Array]) -> Odd | None:
    """The NaN and infinities of a tensor, one value per sample; None if there are none."""
    nan = inf = 0
    for value in values:
        if is_text(value):
            continue
        numbers = metrics.numeric(value)
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all():
            continue
        lost = int(np.isnan(numbers).sum())
        nan += lost
        inf += int((~np.isfinite(numbers)).sum()) - lost
    return Odd(nan, inf) if nan or inf else None
