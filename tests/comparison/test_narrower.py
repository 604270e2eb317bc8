"""An error is that of a narrower type only if computing in that type gives it."""

import numpy as np
import pytest

from biopsy.comparison.noise import MOST_LEFT, share_left
from biopsy.tensors.results import Array

RIGHT = np.random.default_rng(0).normal(0, 1, (8, 16))
HALF = RIGHT.astype(np.float16).astype(np.float64)


def left(actual: Array, exact: Array = RIGHT, rounded: Array = HALF) -> float | None:
    return share_left([{"y": actual}], [{"y": exact}], [{"y": rounded}])


def test_nothing_is_left_of_the_error_of_the_type_itself() -> None:
    assert left(RIGHT.astype(np.float16)) == 0
    in_another_order = (RIGHT * (1 + 2.0**-23)).astype(np.float32).astype(np.float16)
    share = left(in_another_order)
    assert share is not None and share < MOST_LEFT


@pytest.mark.parametrize("factor", [1 + 2.0**-12, 1 - 2.0**-11, 1 + 2.0**-8])
def test_most_is_left_of_another_error_of_that_size(factor: float) -> None:
    share = left(RIGHT * factor)
    assert share is not None and share > 0.5


def test_other_noise_of_that_size_is_not_taken_for_it() -> None:
    noise = RIGHT * (1 + np.random.default_rng(1).uniform(-(2.0**-11), 2.0**-11, RIGHT.shape))
    share = left(noise)
    assert share is not None and share > 0.5


def test_values_that_the_type_holds_exactly_say_nothing() -> None:
    assert left(HALF * (1 + 2.0**-11), exact=HALF, rounded=HALF) is None


def test_few_values_say_nothing() -> None:
    assert left(HALF[0, :7], RIGHT[0, :7], HALF[0, :7]) is None
    same = np.full(64, RIGHT[0, 0])
    assert left(same.astype(np.float16), same, same.astype(np.float16).astype(np.float64)) is None


def test_values_that_are_finite_elsewhere_say_nothing() -> None:
    infinite = HALF.copy()
    infinite[0, 0] = np.inf
    assert left(infinite) is None
    assert left(HALF, rounded=infinite) is None


def test_every_output_counts() -> None:
    exact, rounded = {"a": RIGHT, "b": RIGHT}, {"a": HALF, "b": HALF}
    assert share_left([rounded], [exact], [rounded]) == 0
    worst = share_left([{**rounded, "b": RIGHT * (1 + 2.0**-11)}], [exact], [rounded])
    assert worst is not None and worst > 0.5
    numbers = {"n": np.arange(9)}
    assert share_left([{**rounded, **numbers}], [{**exact, **numbers}], [{**rounded, **numbers}]) == 0
