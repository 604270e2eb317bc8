"""One output compared with its expected value, by a tolerance that also holds for integers."""

from __future__ import annotations

from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.tolerance import DEFAULT_QUANTILE, Criteria, Stat, Tolerance
from biopsy.tensors.results import Array


def compare_tensors(
    name: str,
    actual: Array,
    expected: Array,
    tolerance: Tolerance | None = None,
    stat: Stat = "elemwise",
    quantile: float = DEFAULT_QUANTILE,
) -> OutputComparison:
    """Compare them, by default with the tolerances of ``Criteria``."""
    usual = Criteria()
    criteria = Criteria(
        tolerance=tolerance or usual.tolerance, integers=tolerance or usual.integers, stat=stat, quantile=quantile
    )
    return compare_output(name, actual, expected, criteria)
