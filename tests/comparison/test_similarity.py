"""Single figures of two tensors are what NumPy gives when one writes their definition down."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from biopsy.comparison import differences as similarity
from biopsy.comparison.tolerance import TopK
from biopsy.tensors.results import Array

values = st.floats(-1e3, 1e3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-6)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    return tuple(draw(hnp.arrays(np.float32, shape, elements=values)) for _ in range(2))  # type: ignore[return-value]


@given(pairs())
def test_l2_is_the_euclidean_distance(pair: tuple[Array, Array]) -> None:
    left, right = (side.astype(np.float64) for side in pair)
    assert similarity.l2(*pair) == pytest.approx(np.linalg.norm(left - right))


@given(pairs())
def test_cosine_is_the_cosine_of_the_angle(pair: tuple[Array, Array]) -> None:
    left, right = (side.astype(np.float64).reshape(-1) for side in pair)
    assume(left.any() and right.any())
    expected = left @ right / (np.linalg.norm(left) * np.linalg.norm(right))
    assert similarity.cosine(*pair) == pytest.approx(expected, abs=1e-12)


def test_cosine_of_nothing_is_1_for_two_and_0_for_one() -> None:
    assert similarity.cosine(np.zeros(3), np.zeros(3)) == 1
    assert similarity.cosine(np.zeros(3), np.ones(3)) == 0


@given(pairs())
def test_snr_is_the_power_of_the_signal_over_that_of_the_error(pair: tuple[Array, Array]) -> None:
    left, right = (side.astype(np.float64) for side in pair)
    noise, signal = np.mean((left - right) ** 2), np.mean(right**2)
    if noise == 0:
        assert similarity.snr(*pair) == math.inf
    elif signal == 0:
        assert similarity.snr(*pair) == -math.inf
    else:
        assert similarity.snr(*pair) == pytest.approx(10 * np.log10(signal / noise), abs=1e-9)


@given(pairs())
def test_psnr_is_the_peak_over_the_power_of_the_error(pair: tuple[Array, Array]) -> None:
    left, right = (side.astype(np.float64) for side in pair)
    noise = np.mean((left - right) ** 2)
    peak = right.max() if right.max() > 0 else 1.0
    if noise == 0:
        assert similarity.psnr(*pair) == math.inf
    else:
        assert similarity.psnr(*pair) == pytest.approx(20 * np.log10(peak) - 10 * np.log10(noise), abs=1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_no_square_overflows_or_vanishes(scale: float) -> None:
    left, right = np.array([1.0, 2.0, 2.0]) * scale, np.array([1.0, 2.0, 4.0]) * scale
    assert similarity.l2(left, right) == pytest.approx(2 * scale)
    assert similarity.cosine(left, right) == pytest.approx(13 / (3 * math.sqrt(21)))
    assert similarity.snr(left, right) == pytest.approx(10 * math.log10(21 / 4))


def test_what_is_not_finite_is_left_out_of_sums() -> None:
    left, right = np.array([np.nan, np.inf, 3.0, 4.0, np.nan]), np.array([np.nan, np.inf, 0.0, 0.0, 1.0])
    assert similarity.l2(left, right) == 5


# Units in the last place


def between(low: Any, high: Any, dtype: Any) -> int:
    """Steps from one number to the other, counted one by one."""
    steps, at = 0, dtype(low)
    while at < dtype(high):
        at = np.nextafter(at, dtype(math.inf), dtype=dtype)
        steps += 1
    return steps


@given(hnp.from_dtype(np.dtype(np.float16), allow_nan=False, allow_infinity=False), st.integers(-300, 300))
def test_ulps_count_the_numbers_between(value: np.float16, steps: int) -> None:
    other = value
    for _ in range(abs(steps)):
        with np.errstate(over="ignore"):
            other = np.nextafter(other, np.float16(math.copysign(math.inf, steps)))
    assume(np.isfinite(other))
    low, high = sorted([value, other])
    distance = similarity.ulps(np.array([value]), np.array([other]))[0]
    assert distance == between(low, high, np.float16)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_neighbours_are_one_ulp_apart_and_zeros_are_equal(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    ones = np.array([1, 0, -0.0]).astype(kind)
    later = ones.copy()
    later.view(f"u{kind.itemsize}")[0] += 1
    later = np.array([later[0], ones[2], ones[1]])
    assert similarity.ulps(ones, later.astype(kind)).tolist() == [1, 0, 0]
    assert similarity.ulps(-ones, later).tolist()[0] > 2


def test_ulps_are_those_of_the_less_precise_type() -> None:
    third = np.array([1 / 3])
    assert similarity.ulps(third.astype(np.float32), third) == [0]
    assert similarity.ulps(third, third.astype(np.float16)) == [0]


def test_ulps_of_what_is_not_finite_and_of_other_types() -> None:
    nan, inf = math.nan, math.inf
    assert similarity.ulps(np.array([nan, nan, inf]), np.array([nan, 1.0, inf])).tolist() == [0, inf, 0]
    assert similarity.ulps(np.array([5, 7]), np.array([5, 4])).tolist() == [0, 3]
    assert similarity.ulps(np.array([1 + 1j]), np.array([1 + np.nextafter(1, 2) * 1j])).tolist() == [1]


def test_the_roundoff_of_a_type() -> None:
    assert similarity.unit_roundoff(np.dtype(np.float32)) == 2.0**-24
    assert similarity.unit_roundoff(np.dtype(ml_dtypes.bfloat16)) == 2.0**-8
    assert similarity.unit_roundoff(np.dtype(np.int64)) == 0


# Ranks


@given(hnp.arrays(np.int8, hnp.array_shapes(max_dims=3, max_side=5)), st.integers(1, 6), st.data())
def test_the_top_k_are_the_greatest_with_equals_in_their_order(array: Array, k: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    found = similarity.top_k(array, TopK(k, axis))
    rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).tolist()
    expected = [sorted(range(len(row)), key=lambda at, row=row: (-row[at], at))[:k] for row in rows]
    assert found.reshape(len(rows), -1).tolist() == expected


def peers_verdict(actual: Array, expected: Array, tolerance: int) -> bool:
    """Polygraphy 0.53.6, IndicesCompareFunc."""
    for batch in np.ndindex(actual.shape[:-1]):
        row, other = actual[batch], expected[batch]
        for place, value in enumerate(row[: len(row) - tolerance] if tolerance else row):
            if value != other[place]:
                where = np.flatnonzero(other == value)
                if not where.size or abs(where[0] - place) > tolerance:
                    return False
    return True


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(0, 6))
def test_indices_may_move_as_far_as_polygraphy_lets_them(one: list[int], other: list[int], tolerance: int) -> None:
    actual, expected = np.array([one]), np.array([other])
    found = similarity.rank_mismatches(actual, expected, tolerance)
    assert (found.count == 0) == peers_verdict(actual, expected, tolerance)
    assert (found.first is None) == (found.count == 0)
