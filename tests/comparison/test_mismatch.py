"""The size of a mismatch: what is measured of arrays, and when a candidate's is comparable with the original's."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.comparison.mismatch import (
    FAR_BEYOND_ROUNDING,
    ONLY_ROUNDING,
    ONLY_TIES,
    TOO_SMALL,
    Mismatch,
    Rounding,
    kind_of,
    may_be_rounding,
    mismatches_from,
    most_telling,
    rounding_from,
    size_beside,
    why_not,
    worst_of,
)
from biopsy.comparison.mismatch_size import mismatches_of, quantum_of
from biopsy.comparison.tolerance import Tolerance
from biopsy.tensors.results import Array
from biopsy.tensors.types import dtype_named
from support.comparing import compare_tensors


def measured(actual: Array, expected: Array, **settings: Any) -> list[Mismatch]:
    return list(mismatches_of(compare_tensors("y", actual, expected, **settings), actual, expected))


def one(**figures: Any) -> Mismatch:
    usual = {"elements": 1000, "wrong": 900, "above": 450, "error": 1.0, "times_tolerance": 1e4, "times_rounding": 1e6}
    return Mismatch(output="y", **{**usual, **figures})


# Kinds


def test_an_error_beyond_the_tolerance_is_a_mismatch() -> None:
    assert [found.kind for found in measured(np.float32([1, 2]), np.float32([1, 3]))] == ["mismatch"]


def test_a_number_that_is_finite_on_one_side_only_is_another_kind() -> None:
    broken = np.float32([1, np.nan, 3]), np.float32([1, 2, 3])
    assert [found.kind for found in measured(*broken)] == ["nan-mismatch"]
    both = np.float32([1, np.nan, 3]), np.float32([1, 2, 4])
    assert [found.kind for found in measured(*both)] == ["nan-mismatch", "mismatch"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "complex64"])
def test_nan_and_each_infinity_of_each_side_are_kinds_of_their_own(dtype: str) -> None:
    inf, nan, of = np.inf, np.nan, dtype_named(dtype)

    def kinds(actual: list[float], expected: list[float]) -> dict[str, int]:
        return {
            found.kind: found.wrong for found in measured(np.array(actual).astype(of), np.array(expected).astype(of))
        }

    assert kinds([1, nan, inf, nan], [1, nan, inf, 1]) == {"nan-mismatch": 1}
    assert kinds([nan, 1, 1], [inf, nan, nan]) == {"nan-mismatch": 1, "nan-expected": 2}
    assert kinds([inf, 1], [1, inf]) == {"+inf-mismatch": 1, "+inf-expected": 1}
    if dtype != "complex64":  # whose infinities have no sign
        assert kinds([-inf, 1], [1, -inf]) == {"-inf-mismatch": 1, "-inf-expected": 1}
        assert kinds([inf, -inf], [-inf, inf]) == {"+inf-mismatch": 1, "-inf-mismatch": 1}


def test_shapes_and_types_are_kinds_of_their_own() -> None:
    assert [found.kind for found in measured(np.zeros(3), np.zeros(4))] == ["shape-mismatch"]
    assert [found.kind for found in measured(np.array(["a"]), np.zeros(1))] == ["type-mismatch"]


def test_what_passes_has_no_kind() -> None:
    assert measured(np.zeros(3), np.zeros(3)) == []


def test_the_gravest_kind_names_a_run() -> None:
    kinds = ("mismatch", "nan-mismatch", "shape-mismatch")
    assert kind_of([Mismatch(output="y", kind=kind) for kind in kinds]) == "shape-mismatch"
    assert kind_of([]) == ""


# Size


def test_the_size_is_measured_by_tolerance_by_rounding_and_by_sides() -> None:
    expected = np.full((10, 100), 2, np.float32) + np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 100)
    actual = expected.copy()
    actual[3, 4:8] += np.float32(0.5)
    actual[5, 5] -= np.float32(0.25)
    (found,) = measured(actual, expected, tolerance=Tolerance(0.01, 0))
    assert (found.elements, found.wrong, found.above) == (1000, 5, 4)
    assert found.share == 0.005
    assert found.bias == pytest.approx(0.6)
    assert found.index[0] == 3
    assert found.error == pytest.approx(0.5, rel=1e-5)
    assert found.times_tolerance == pytest.approx(50, rel=1e-5)
    assert found.times_rounding == pytest.approx(0.5 / 3 * 2**24, rel=1e-5)
    assert not found.discrete
    assert found.passing_atol is not None
    assert found.passing_atol >= 0.5


def test_without_a_tolerance_only_rounding_measures_an_error() -> None:
    (found,) = measured(np.float32([1, 2.5, 3]), np.float32([1, 2, 3.5]), tolerance=Tolerance(0, 0))
    assert found.times_tolerance is None
    assert found.times_rounding is not None


@pytest.mark.parametrize(("stat", "quantile"), [("max", 0.99), ("mean", 0.99), ("median", 0.99), ("quantile", 0.5)])
def test_a_statistic_is_measured_by_the_tolerances_that_it_is_held_against(stat: Any, quantile: float) -> None:
    (found,) = measured(
        np.full(10, 3.0), np.full(10, 2.0), tolerance=Tolerance(0.1, 0.01), stat=stat, quantile=quantile
    )
    assert found.times_tolerance == pytest.approx(10)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint64, np.bool_, np.complex64])
def test_every_type_of_numbers_has_a_size(dtype: type) -> None:
    expected = np.arange(6).astype(dtype)
    actual = expected.copy()
    actual[2] = 0
    (found,) = measured(actual, expected)
    assert found.wrong == 1
    assert found.discrete == (dtype not in (np.complex64,))


def test_strings_have_a_size_too() -> None:
    (found,) = measured(np.array(["a", "b", "c"]), np.array(["a", "b", "d"]))
    assert (found.elements, found.wrong, found.quantum) == (3, 1, 0.0)


def test_discrete_are_whole_numbers_and_what_stands_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    assert quantum_of(rng.integers(0, 9, 50)) == 1
    assert quantum_of(rng.random(50) > 0.5) == 1
    assert quantum_of(np.floor(rng.normal(size=1000) * 9).astype(np.float32)) == 1
    dequantized = (rng.integers(-128, 128, 5000).astype(np.float32) - 3) * np.float32(0.0137)
    assert quantum_of(dequantized) == pytest.approx(0.0137, rel=1e-3)
    assert quantum_of(rng.normal(size=5000).astype(np.float32)) is None
    assert quantum_of(np.maximum(rng.normal(size=5000), 0)) is None
    assert quantum_of(np.zeros(0, np.float32)) is None
    assert quantum_of(np.full(9, np.nan)) is None
    assert quantum_of(np.float32([0.1, 0.1 + 1e-8] * 50)) is None


# Ties


def steps(share: float, upwards: float, elements: int = 40_000, by: int = 1) -> Mismatch:
    """A discrete output in which some elements are a step too high, and some too low."""
    rng = np.random.default_rng(1)
    expected = rng.integers(10, 200, elements).astype(np.uint8)
    actual = expected.copy()
    where = rng.choice(elements, max(1, int(share * elements)), replace=False)
    actual[where] += np.where(rng.random(where.size) < upwards, by, -by).astype(np.int8).view(np.uint8)
    (found,) = measured(actual, expected)
    return found


def test_a_few_elements_one_step_to_either_side_are_ties() -> None:
    assert steps(0.001, 0.5).is_tie
    assert steps(0.00002, 1.0).is_tie, "one element has no other side"


def test_a_truncation_is_no_tie() -> None:
    assert not steps(0.5, 0.0).is_tie
    assert not steps(0.005, 0.0).is_tie, "rare, but all to one side"
    assert not steps(0.5, 0.5).is_tie, "to both sides, but many"
    assert not steps(0.001, 0.5, by=3).is_tie, "several steps"


def test_a_rounding_tie_is_no_smaller_form_of_a_tensor_that_is_wrong_everywhere() -> None:
    original = one(elements=30_030, wrong=30_030, above=15_000)
    tie = steps(1 / 47_190, 1.0, 47_190)
    assert size_beside([tie], [original]) == "smaller"
    assert why_not([tie], [original], None) == ONLY_TIES


def test_a_truncation_may_be_a_smaller_form_of_it() -> None:
    original = one(elements=30_030, wrong=30_030, above=15_000)
    assert size_beside([steps(0.5, 0.0)], [original]) == "doubtful"
    assert why_not([steps(0.5, 0.0)], [original], None) is None
    assert size_beside([steps(0.5, 0.0)], [steps(0.4, 0.0)]) == "comparable"


def test_where_the_original_is_a_tie_a_tie_is_what_is_searched_for() -> None:
    assert size_beside([steps(0.001, 0.5)], [steps(0.002, 0.5)]) == "comparable"


# Comparable


def test_within_ten_times_of_the_original_nothing_is_asked() -> None:
    assert size_beside([one(times_tolerance=1e3)], [one(times_tolerance=1e4)]) == "comparable"
    assert size_beside([one(times_tolerance=1e9)], [one(times_tolerance=1e4)]) == "comparable"


def test_below_that_float64_decides() -> None:
    small = [one(times_tolerance=9e2)]
    assert size_beside(small, [one(times_tolerance=1e4)]) == "doubtful"
    assert why_not(small, [one(times_tolerance=1e4)], Rounding("rounding", 2.0)) == ONLY_ROUNDING
    assert why_not(small, [one(times_tolerance=1e4)], Rounding("bug", 50.0)) is None


def test_where_float64_cannot_run_the_size_decides() -> None:
    original = [one(times_tolerance=1e4)]
    for unknown in (None, Rounding("unknown", reason="no float64")):
        assert why_not([one(times_tolerance=9e2, times_rounding=3)], original, unknown) == TOO_SMALL
        assert why_not([one(times_tolerance=9e2, times_rounding=FAR_BEYOND_ROUNDING)], original, unknown) is None


def test_great_values_exceed_an_absolute_tolerance_by_rounding_alone() -> None:
    original, large_values = one(times_rounding=1e6), one(times_tolerance=1e4, times_rounding=0.8)
    assert size_beside([large_values], [original]) == "doubtful"


def test_few_wrong_elements_where_many_were_are_doubtful() -> None:
    assert size_beside([one(elements=100_000, wrong=40, above=20)], [one()]) == "doubtful"
    assert size_beside([one(elements=100, wrong=1, above=1)], [one(wrong=5, above=0)]) == "comparable"


def test_steps_of_a_discrete_output_have_no_error_to_compare() -> None:
    flipped = one(elements=4, wrong=1, above=1, error=500.0, times_tolerance=2.8e6, times_rounding=None, quantum=1.0)
    assert size_beside([flipped], [one()]) == "doubtful"
    assert why_not([flipped], [one()], None) == TOO_SMALL
    assert size_beside([one()], [flipped]) == "doubtful", "nor has what comes before the step"


def test_nothing_is_said_where_a_check_tells_no_size() -> None:
    unsized = Mismatch(output="y")
    assert size_beside([], [one()]) == "comparable"
    assert size_beside([one()], []) == "comparable"
    assert size_beside([unsized], [one()]) == "comparable"
    assert size_beside([one(times_tolerance=None, times_rounding=None)], [one()]) == "comparable"


def test_one_output_that_is_comparable_is_enough() -> None:
    assert size_beside([one(times_tolerance=2.0), one()], [one()]) == "comparable"


def test_what_may_be_rounding_is_asked_about_before_the_search() -> None:
    assert may_be_rounding([one(times_rounding=12.0)])
    assert may_be_rounding([steps(0.001, 0.5)])
    assert not may_be_rounding([one()])
    assert not may_be_rounding([one(), one(times_rounding=12.0)])
    assert not may_be_rounding([])


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e9), st.floats(1, 1e3))
def test_a_mismatch_is_always_comparable_with_itself_and_with_a_smaller_one(
    tolerance: float, rounding: float, factor: float
) -> None:
    small = one(times_tolerance=tolerance, times_rounding=rounding)
    great = one(times_tolerance=tolerance * factor, times_rounding=rounding * factor)
    assert size_beside([small], [small]) == "comparable"
    assert size_beside([great], [small]) == "comparable"


# What is told


def test_the_worst_is_the_gravest_kind_and_of_it_the_greatest() -> None:
    broken = Mismatch(output="z", kind="nan-mismatch", elements=4, wrong=1)
    assert worst_of([one(), broken]) == broken
    assert worst_of([one(times_tolerance=5.0), one(times_tolerance=7.0)]) == one(times_tolerance=7.0)
    assert worst_of([]) is None
    assert len(most_telling([one(times_tolerance=float(n)) for n in range(20)] + [broken], 4)) == 5


def test_mismatches_are_the_same_after_json() -> None:
    found = (*measured(np.float32([[1, np.nan], [3, 9]]), np.float32([[1, 2], [3, 4]])), steps(0.01, 0.3))
    assert mismatches_from(json.loads(json.dumps([asdict(one) for one in found], allow_nan=False))) == found
    for rounding in (Rounding("bug", 3.5), Rounding("unknown", None, "why"), None):
        assert rounding_from(json.loads(json.dumps(asdict(rounding) if rounding else None))) == rounding


@pytest.mark.parametrize(
    "tree",
    [
        "y", [1], [{}], [{"output": 1}], [{"output": "y", "wrong": "2"}], [{"output": "y", "wrong": True}],
        [{"output": "y", "elements": 2, "wrong": 3}], [{"output": "y", "index": ["a"]}],
        [{"output": "y", "wrong": 1, "elements": 2, "above": -1}], [{"output": "y", "error": [1]}],
    ],
)  # fmt: skip
def test_what_is_no_mismatch_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        mismatches_from(tree)


@pytest.mark.parametrize("tree", [1, {}, {"verdict": "perhaps"}, {"verdict": "bug", "times": "2"}])
def test_what_is_no_judgement_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match="rounding"):
        rounding_from(tree)


def test_what_is_no_finite_number_is_not_known() -> None:
    (found,) = mismatches_from([{"output": "y", "error": float("inf"), "times_tolerance": 2}])
    assert (found.error, found.times_tolerance) == (None, 2.0)
