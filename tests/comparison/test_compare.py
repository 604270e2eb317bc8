"""Outputs pass or fail as numpy and Polygraphy would have it, and the numbers told about them are true."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from biopsy import errors
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.metrics import not_finite
from biopsy.comparison.runs import compare_runs
from biopsy.comparison.tolerance import STATS, Stat, Stats, Tolerance, Tolerances
from biopsy.tensors.results import Array, Iteration, RunnerResult
from support.comparing import compare_tensors

special = st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324])
near = st.floats(-2, 2) | special
tolerances = st.sampled_from([0.0, 1e-9, 1e-5, 1e-3, 0.1, 1.0])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two float64 tensors of one shape, close to each other in many places."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    expected = draw(hnp.arrays(np.float64, shape, elements=near))
    actual = draw(hnp.arrays(np.float64, shape, elements=near))
    close = draw(hnp.arrays(np.bool_, shape))
    with np.errstate(over="ignore"):
        scaled = expected * draw(st.sampled_from([1, 1 + 1e-9, 1 + 1e-5, 1.001]))
    return np.where(close, scaled, actual), expected


def measured(comparison: OutputComparison) -> Any:
    assert comparison.measured is not None
    return comparison.measured


@given(pairs(), tolerances, tolerances)
def test_elemwise_agrees_with_numpys_assert_allclose(pair: tuple[Array, Array], atol: float, rtol: float) -> None:
    actual, expected = pair
    try:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(actual, expected, atol=atol, rtol=rtol)
        passes = True
    except AssertionError:
        passes = False
    assert compare_tensors("y", actual, expected, Tolerance(atol, rtol)).passed == passes


@given(pairs(), tolerances, tolerances, st.sampled_from(STATS), st.sampled_from([0.0, 0.3, 0.99, 1.0]))
def test_the_tolerance_that_would_pass_passes_and_is_close_to_the_smallest(
    pair: tuple[Array, Array], atol: float, rtol: float, stat: Stat, quantile: float
) -> None:
    def compare(atol: float, rtol: float) -> OutputComparison:
        return compare_tensors("y", *pair, Tolerance(atol, rtol), stat, quantile)

    given_one = compare(atol, rtol)
    if given_one.passed:
        return
    sizes = np.abs(np.stack(pair))
    # Where a tolerance is lost in rounding, or a value is denormal, a smaller one may pass too.
    sharp = not (atol or rtol or ((sizes > 0) & (sizes < 1e-290)).any())
    enough = measured(given_one).passing_atol
    if enough is not None:
        assert compare(enough, rtol).passed
        assert not (sharp and enough > 1e-300 and compare(enough * 0.98, rtol).passed)
    enough = measured(given_one).passing_rtol
    if enough is not None:
        assert compare(atol, enough).passed
        assert not (sharp and enough > 1e-300 and compare(atol, enough * 0.98).passed)


@given(pairs(), st.sampled_from(STATS), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_not_a_number_or_infinity_on_one_side_only_always_fails(
    pair: tuple[Array, Array], stat: Stat, odd: float, swap: bool
) -> None:
    actual, expected = (np.append(side, last) for side, last in zip(pair, (odd, 1.0), strict=True))
    if swap:
        actual, expected = expected, actual
    comparison = compare_tensors("y", actual, expected, Tolerance(1e300, 1e300), stat, 0.0)
    assert not comparison.passed
    assert measured(comparison).passing_atol is None


@given(pairs())
def test_the_worst_elements_hold_the_greatest_errors(pair: tuple[Array, Array]) -> None:
    actual, expected = pair
    assume(np.isfinite(actual).all() and np.isfinite(expected).all() and actual.size)
    found = measured(compare_tensors("y", actual, expected))
    with np.errstate(over="ignore"):
        difference = np.abs(actual - expected)
    assert found.absolute.maximum == difference.max()
    if found.worst_absolute is None:
        assert difference.max() == 0
    else:
        assert difference[found.worst_absolute.index] == difference.max()
        assert found.worst_absolute.actual == actual[found.worst_absolute.index]
        assert found.worst_absolute.expected == expected[found.worst_absolute.index]


@given(pairs())
def test_errors_have_the_mean_median_and_quantile_that_numpy_gives(pair: tuple[Array, Array]) -> None:
    actual, expected = (np.clip(np.nan_to_num(side), -1e100, 1e100) for side in pair)
    assume(actual.size)
    found = measured(compare_tensors("y", actual, expected, quantile=0.9)).absolute
    difference = np.abs(actual - expected)
    np.testing.assert_allclose(found.mean, difference.mean(), atol=1e-300)
    np.testing.assert_allclose(found.median, np.median(difference), atol=1e-300)
    np.testing.assert_allclose(found.quantile, np.quantile(difference, 0.9), atol=1e-300)


ACTUAL, EXPECTED = np.array([1.0, 2.0, 4.0, 13.0]), np.array([1.0, 1.0, 2.0, 10.0])
# Absolute errors 0, 1, 2, 3; relative ones 0, 1, 1, 0.3.


@pytest.mark.parametrize(
    ("stat", "atol", "rtol"), [("max", 3, 1), ("mean", 1.5, 0.575), ("median", 1.5, 0.65), ("quantile", 2.97, 1)]
)
def test_a_statistic_passes_if_the_absolute_or_the_relative_one_does(stat: Stat, atol: float, rtol: float) -> None:
    def passes(atol: float, rtol: float) -> bool:
        return compare_tensors("y", ACTUAL, EXPECTED, Tolerance(atol, rtol), stat).passed

    assert passes(atol + 1e-9, 0)
    assert passes(0, rtol + 1e-9)
    assert not passes(atol - 0.01, rtol - 0.01)


def test_mismatching_elements_are_counted_whatever_decides() -> None:
    found = measured(compare_tensors("y", ACTUAL, EXPECTED, Tolerance(1, 0), "mean"))
    assert (found.mismatching, found.elements, found.fraction) == (2, 4, 0.5)


def test_other_shapes_fail_and_other_types_do_not() -> None:
    comparison = compare_tensors("y", np.ones((2, 3)), np.ones((3, 2)))
    assert not comparison.passed
    assert comparison.reason == "shapes differ: [2, 3], expected [3, 2]"
    comparison = compare_tensors("y", np.ones(2, np.float16), np.ones(2, np.int64))
    assert comparison.passed
    assert (comparison.actual_dtype, comparison.expected_dtype) == ("float16", "int64")


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        (np.array([2**60 + 1]), np.array([2**60]), 1),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2**64 - 1),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64), 2**64 - 1),
        (np.array([2**63], np.uint64), np.array([2**63 - 1]), 1),
        (np.array([-1]), np.array([2**64 - 1], np.uint64), 2**64),
        (np.array([-128], np.int8), np.array([255], np.uint8), 383),
        (np.array([True]), np.array([False]), 1),
        (np.array([-8]).astype(ml_dtypes.int4), np.array([7]).astype(ml_dtypes.int4), 15),
    ],
)
def test_integers_are_compared_exactly_and_never_overflow(actual: Array, expected: Array, difference: int) -> None:
    found = measured(compare_tensors("y", actual, expected, Tolerance(0, 0)))
    assert found.absolute.maximum == float(difference)
    assert found.mismatching == 1
    assert found.worst_absolute.actual == actual.tolist()[0]
    assert compare_tensors("y", actual, actual, Tolerance(0, 0)).passed


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1))
def test_signed_and_unsigned_64_bit_integers_differ_by_what_they_differ(signed: int, unsigned: int) -> None:
    found = measured(compare_tensors("y", np.array([signed]), np.array([unsigned], np.uint64))).absolute.maximum
    assert found >= abs(signed - unsigned) >= math.nextafter(found, 0)
    assert (found == 0) == (signed == unsigned)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_small_floats_are_compared_by_value(dtype: str) -> None:
    small = np.array([0.5, 1.5, 2]).astype(getattr(ml_dtypes, dtype))
    assert compare_tensors("y", small, np.array([0.5, 1.5, 2], np.float32)).passed
    assert measured(compare_tensors("y", small, np.array([0.5, 1.5, 3]))).worst_absolute.actual == 2.0


def test_complex_numbers_are_compared_by_the_size_of_their_difference() -> None:
    found = measured(compare_tensors("y", np.array([3 + 4j, np.nan]), np.array([0j, np.nan])))
    assert found.absolute.maximum == 5
    assert found.worst_absolute.actual == 3 + 4j


def test_strings_must_be_equal() -> None:
    words = np.array(["a", "b"])
    assert compare_tensors("y", words, words.astype(object)).passed
    comparison = compare_tensors("y", words, np.array(["a", "c"]), Tolerance(9, 9), "max")
    assert comparison.reason == "1 of 2 strings differ"
    assert measured(comparison).worst_absolute.expected == "c"
    assert compare_tensors("y", words, np.ones(2)).reason == "types differ: string, expected float64"


@pytest.mark.parametrize("stat", STATS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "<U3", "complex64"])
def test_empty_tensors_pass_and_scalars_are_compared(stat: Stat, dtype: str) -> None:
    empty = np.zeros((0, 3), dtype)
    assert compare_tensors("y", empty, empty, stat=stat).passed
    assert compare_tensors("y", np.ones((), dtype), np.ones((), dtype), stat=stat).passed
    assert not compare_tensors("y", np.ones((), dtype), np.zeros((), dtype), stat=stat).passed


def test_statistics_are_of_the_finite_elements_and_count_the_others() -> None:
    values = np.array([[np.nan, 1.0], [3.0, -np.inf]])
    found = compare_tensors("y", values, values).actual_statistics
    assert found is not None
    assert (found.elements, found.nan, found.inf) == (4, 1, 1)
    assert (found.minimum, found.minimum_at, found.maximum, found.maximum_at) == (1.0, (0, 1), 3.0, (1, 0))
    assert (found.mean, found.std, found.median) == (2.0, 1.0, 2.0)


def test_statistics_of_great_values_do_not_overflow() -> None:
    found = compare_tensors("y", np.full(9, 1.5e308), np.full(9, 1.5e308)).actual_statistics
    assert found is not None
    assert (found.mean, found.std) == (1.5e308, 0)


# Runs


def result(*iterations: dict[str, Any], name: str = "runner") -> RunnerResult:
    return RunnerResult(
        name, tuple(Iteration({key: np.asarray(value) for key, value in it.items()}) for it in iterations)
    )


def test_runs_are_compared_iteration_by_iteration_and_by_name() -> None:
    actual = result({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    expected = result({"b": 1.0, "a": 1.0}, {"b": 2.0, "a": 1.0})
    comparison = compare_runs(actual, expected)
    assert not comparison.passed
    assert [(number, output.name) for number, output in comparison.failures] == [(1, "b")]
    assert [output.name for output in comparison.iterations[0].outputs] == ["a", "b"]


def test_every_output_has_its_own_tolerance_and_statistic() -> None:
    actual, expected = result({"a": [1.0, 2.0], "b": [1.0, 2.0]}), result({"a": [1.0, 2.5], "b": [1.0, 2.5]})
    strict, loose = Tolerances({"": 0.1}), Tolerances({"": 0.1, "b": 0.6}, {"": 0.0})
    assert len(compare_runs(actual, expected, strict).failures) == 2
    assert [output.name for _, output in compare_runs(actual, expected, loose).failures] == ["a"]
    stats = Stats({"": "max", "a": "quantile"}, {"a": 0.1})
    assert [output.name for _, output in compare_runs(actual, expected, strict, stats).failures] == ["b"]


def test_tolerances_are_1e_5_by_default() -> None:
    assert Tolerances().for_output("y") == Tolerance(1e-5, 1e-5)


def test_outputs_of_one_side_only_are_listed_and_decide_nothing() -> None:
    comparison = compare_runs(result({"a": 1.0, "mine": 1.0}), result({"a": 1.0, "theirs": 1.0}, {"a": 2.0}))
    assert comparison.passed
    assert comparison.iterations[0].only_actual == ("mine",)
    assert comparison.iterations[0].only_expected == ("theirs",)
    assert (comparison.actual_iterations, comparison.expected_iterations) == (1, 2)


def test_fail_fast_stops_at_the_first_failing_output() -> None:
    actual, expected = result({"a": 1.0, "b": 1.0}, {"a": 1.0}), result({"a": 2.0, "b": 1.0}, {"a": 1.0})
    comparison = compare_runs(actual, expected, fail_fast=True)
    assert [output.name for it in comparison.iterations for output in it.outputs] == ["a"]
    assert not comparison.complete
    assert not comparison.passed


@pytest.mark.parametrize(
    ("actual", "expected", "match"),
    [
        (result({"a": 1.0}, name="one"), result({"b": 1.0}, name="two"), "one has 'a', two has 'b'"),
        (result(name="one"), result({"b": 1.0}), "one has no iteration"),
        (result({}, name="one"), result({"b": 1.0}), "one has no outputs"),
    ],
)
def test_nothing_in_common_is_no_verdict(actual: RunnerResult, expected: RunnerResult, match: str) -> None:
    with pytest.raises(errors.CannotCompare, match=match):
        compare_runs(actual, expected)


def test_nan_and_infinities_are_found_with_the_place_of_the_first() -> None:
    odd = np.array([[1.0, np.inf], [np.nan, np.nan]]).astype(ml_dtypes.bfloat16)
    fine = {"words": np.array(["a"]), "n": np.array([1]), "x": np.array([1.0])}
    (found,) = not_finite(result(fine, {**fine, "odd": odd}))
    assert (found.iteration, found.name, found.elements, found.nan, found.inf) == (1, "odd", 4, 2, 1)
    assert (found.first, found.value) == ((0, 1), math.inf)
