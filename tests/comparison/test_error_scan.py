"""Looking at two tensors block by block finds what the formula for whole tensors says."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from biopsy.comparison import differences, metrics
from biopsy.comparison.compare import compare_output
from biopsy.comparison.describe import report_lines, wide_tolerance
from biopsy.comparison.differences import ErrorSummary, summary_within
from biopsy.comparison.tolerance import Criteria, Tolerance
from biopsy.tensors.results import Array

TYPES = [
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *("bool", "int8", "uint8", "int32", "int64", "uint64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
]
VALUES = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 1 + 1e-6, 1 + 2e-3, 65504.0, 1e300, -1e300, math.nan, math.inf, -math.inf),
    *(1e-3, 1e-8, 1e-30, 1e-45, 2e-308, 1e-320, 5e-324, 1.5e308),
]
ONE = Tolerance(1.0, 1.0)
TOLERANCES = [0.0, 5e-324, 1e-9, 1e-5, 1e-3, 1.0, 10.0, 1e300, math.inf]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two tensors of one shape, often of one type and equal here and there: empty, scalar, not contiguous too."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    values = hnp.arrays(np.float64, shape, elements=st.sampled_from(draw(st.sampled_from([VALUES, VALUES[:8]]))))
    expected = draw(values)
    actual = np.where(draw(hnp.arrays(np.bool_, shape)), draw(values), expected)
    types = [draw(st.sampled_from(TYPES))] * 2
    if draw(st.booleans()):
        types[1] = draw(st.sampled_from(TYPES))
    laid_out: Callable[[Array], Array] = draw(st.sampled_from([np.asarray, np.asfortranarray, _with_gaps]))
    with np.errstate(all="ignore"):
        return laid_out(actual.astype(types[0])), laid_out(expected.astype(types[1]))


def _with_gaps(array: Array) -> Array:
    return np.stack([array, array], axis=-1)[..., 0]


def by_the_formula(actual: Array, expected: Array, tolerance: Tolerance) -> ErrorSummary | None:
    """What is asked of a scan, from errors of all elements at once."""
    found = metrics.errors_between(actual, expected)
    if metrics.outside(found, tolerance.atol, tolerance.rtol).any():
        return None
    identical = actual.dtype == expected.dtype and np.array_equal(actual, expected)
    finite = found.magnitude[np.isfinite(found.magnitude)]
    absolute = metrics.worst(actual, expected, found.absolute)
    relative = metrics.worst(actual, expected, found.relative)
    return ErrorSummary(
        elements=actual.size,
        worst_absolute=absolute,
        worst_relative=relative,
        passing_atol=tolerance.atol,
        passing_rtol=tolerance.rtol,
        differing=int((found.absolute > 0).sum()),
        greatest=0.0 if identical else float(finite.max(initial=0)),
    )


@given(pairs(), st.sampled_from(TOLERANCES), st.sampled_from(TOLERANCES), st.sampled_from([1, 3, 1 << 14]))
@example((np.float64([1e-320, 1.0]), np.float64([0.0, 1.0])), 1.0, 0.0, 1 << 14)
@example((np.float64([1 + 2**-52, 5e-324]), np.float64([1.0, 1.0])), 1.0, 0.0, 1)
@example((np.float64([5e-324, 2e300]), np.float64([1e-323, 1e300 * 2])), 1.0, 0.0, 3)
def test_a_scan_finds_what_the_formula_says(pair: tuple[Array, Array], atol: float, rtol: float, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "BLOCK", block)
        seen, known = (find(*pair, Tolerance(atol, rtol)) for find in (summary_within, by_the_formula))
        assert _without_statistics(seen) == known


def _without_statistics(summary: ErrorSummary | None) -> ErrorSummary | None:
    """NaN, which a block gives no mean of, is not equal to itself; the greatest errors are those of the worst."""
    if summary is None:
        return None
    for side, worst in ((summary.absolute, summary.worst_absolute), (summary.relative, summary.worst_relative)):
        assert side.maximum == (worst.error if worst else 0)
    return replace(summary, absolute=metrics.NO_ERROR, relative=metrics.NO_ERROR)


@given(pairs())
def test_a_brief_comparison_lacks_only_what_nobody_is_shown_of_an_output_that_passes(
    pair: tuple[Array, Array],
) -> None:
    brief, usual = (compare_output("y", *pair, Criteria(), detail) for detail in ("brief", "usual"))
    assert brief.passed == usual.passed
    assert brief.reason == usual.reason
    assert (report_lines(brief), wide_tolerance(brief)) == (report_lines(usual), wide_tolerance(usual))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", ml_dtypes.bfloat16])
def test_nothing_of_the_size_of_a_tensor_is_computed_where_it_passes(dtype: str) -> None:
    """The numbers of a block stand in memory some sixteen times, each with eight bytes, whatever the tensor's size."""
    expected = np.random.default_rng(0).uniform(0, 100, (64, differences.BLOCK)).astype(dtype)
    actual = expected.copy()
    actual[:, ::5] = expected[:, ::5] + np.asarray(1, dtype)
    tracemalloc.start()
    try:
        compared = compare_output("y", actual, expected, Criteria(tolerance=ONE, integers=ONE), "brief")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert compared.passed
    assert compared.measured is not None and compared.measured.differing
    assert peak < 16 * 8 * differences.BLOCK
