"""From two tensors to one error: what was asked of outputs is asked of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from biopsy.comparison import metrics
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.metrics import Element
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerance, Tolerances, asked_of
from biopsy.layerwise.findings import TensorError
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
            self._in_sample(name, number, left, right)
            for number, (left, right) in enumerate(zip(actual, expected, strict=True))
        )

    def _in_sample(self, name: str, sample: int, actual: Array, expected: Array) -> TensorError:
        asked = asked_of(name, self.tolerances, self.stats, self.limits)
        compared = compare_output(name, actual, expected, asked, "brief")
        ratio = 0.0
        if compared.measured is None:
            ratio = math.inf
        elif compared.measured.absolute.maximum > 0 and not compared.passed:
            outside = compared.measured.offending
            ratio = outside.error if outside is not None else _ratio(actual, expected, compared.tolerance)
        release(actual, expected)
        return _tensor_error(name, sample, compared, ratio)


def _tensor_error(name: str, sample: int, compared: OutputComparison, tolerance_ratio: float) -> TensorError:
    measured = compared.measured
    return TensorError(
        tensor=name,
        sample=sample,
        passed=compared.passed,
        reason=compared.reason,
        absolute=math.inf if measured is None else measured.absolute.maximum,
        relative=math.inf if measured is None else measured.relative.maximum,
        tolerance_ratio=tolerance_ratio,
        worst=None if measured is None else _offending(compared),
    )


def _offending(compared: OutputComparison) -> Element | None:
    """The element that fails, the worst first; where nothing does, the one with the greatest difference."""
    measured = compared.measured
    by_limit = [limit.worst for limit in compared.judged if not limit.passed]
    by_tolerance = [measured.offending] if measured is not None and compared.tolerances_decide else []
    greatest = [measured.worst_absolute] if measured is not None else []
    failing = [*by_tolerance, *by_limit] if not compared.passed else []
    return next((element for element in [*failing, *greatest] if element is not None), None)


def worst(measured: Iterable[TensorError]) -> TensorError:
    """The worst of several errors; the first of them where they are alike."""
    return max(measured, key=lambda error: error.rank)


def _ratio(actual: Array, expected: Array, tolerance: Tolerance) -> float:
    differences = metrics.errors_between(actual, expected)
    return float(metrics.shares(differences, tolerance.atol, tolerance.rtol).max(initial=0))
