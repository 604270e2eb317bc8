"""Inputs that are some roundings off."""

import ml_dtypes
import numpy as np

from biopsy.tensors.generate import differ, roundings_off

FEED = {
    "f": np.linspace(-3, 3, 100, dtype=np.float32),
    "h": np.linspace(1, 2, 100, dtype=np.float16),
    "b": np.linspace(1, 2, 100).astype(ml_dtypes.bfloat16),
    "i": np.arange(5),
    "s": np.array(["a", "b"]),
    "n": np.float32([np.nan, np.inf, 0]),
}


def test_numbers_of_floating_types_are_some_roundings_off_and_nothing_else_changes() -> None:
    (found,) = roundings_off([FEED], 10)
    for name, value in FEED.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
    for name, most in (("f", 2e-6), ("h", 2e-2), ("b", 0.1)):
        wide, before = found[name].astype(np.float64), FEED[name].astype(np.float64)
        assert 0 < np.abs(wide / before - 1).max() < most
    for name in ("i", "s", "n"):
        np.testing.assert_array_equal(found[name], FEED[name])


def test_whole_numbers_move_away_from_zero_since_a_cast_cuts_off() -> None:
    feed = {"x": np.array([-7.0, 0.0, 7.0] * 50, np.float32)}
    (found,) = roundings_off([feed], 10)
    assert (np.trunc(found["x"]) == feed["x"]).all()
    assert differ([feed], [found])


def test_the_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    first, again, other = (roundings_off([FEED], 10, seed) for seed in (1, 1, 2))
    assert not differ([{"f": first[0]["f"]}], [{"f": again[0]["f"]}])
    assert differ([{"f": first[0]["f"]}], [{"f": other[0]["f"]}])


def test_inputs_without_floating_numbers_do_not_differ() -> None:
    feed = {"i": np.arange(5)}
    assert not differ([feed], roundings_off([feed], 10))
