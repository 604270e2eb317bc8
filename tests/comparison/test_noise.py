"""An engine that sums in another order only rounds; one that computes something else is wrong, however little."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.comparison.describe import noise_lines, noise_tree
from biopsy.comparison.noise import NoiseComparison, compare_noise, explained_by, judge_noise
from biopsy.tensors.results import Array, Iteration, RunnerResult


def product(seed: int, inner: int = 256) -> tuple[Array, Array, Array]:
    """A matrix product: one column at a time, by NumPy, and in float64."""
    rng = np.random.default_rng(seed)
    left, right = (rng.normal(size=size).astype(np.float32) for size in ((16, inner), (inner, 16)))
    one_by_one = np.zeros((16, 16), np.float32)
    for column in range(inner):
        one_by_one += np.outer(left[:, column], right[column])
    return one_by_one, left @ right, left.astype(np.float64) @ right.astype(np.float64)


@given(st.integers(0, 2**32), st.sampled_from([16, 64, 256, 1024]))
def test_another_order_of_summing_is_rounding(seed: int, inner: int) -> None:
    other, plain, exact = product(seed, inner)
    assert judge_noise("y", 0, other, plain, exact).passed


@given(st.integers(0, 2**32), st.integers(0, 255))
def test_one_element_that_is_wrong_by_a_thousandth_is_a_bug(seed: int, place: int) -> None:
    suspect, plain, exact = product(seed)
    suspect.reshape(-1)[place] += np.float32(1e-3)
    found = judge_noise("y", 0, suspect, plain, exact)
    assert found.verdict == "bug"
    assert found.suspect is not None
    assert found.suspect.worst is not None
    assert found.suspect.worst.index == divmod(place, 16)


def test_a_small_error_everywhere_is_a_bug() -> None:
    suspect, plain, exact = product(0)
    assert judge_noise("y", 0, suspect * np.float32(1.0001), plain, exact).verdict == "bug"


def test_what_float16_would_explain_is_told() -> None:
    _, plain, exact = product(0)
    found = judge_noise("y", 0, exact.astype(np.float16), plain, exact)
    assert found.verdict == "bug"
    assert explained_by(found.ratio) == "float16 or TF32"
    assert any("float16" in line for line in noise_lines(found))
    assert explained_by(1) is None
    assert explained_by(math.inf) is None


def test_where_plain_float32_is_exact_one_rounding_is_allowed() -> None:
    exact = np.array([1.0, 2.0, 3.0])
    rounded = np.nextafter(exact.astype(np.float32), np.float32(9))
    assert judge_noise("y", 0, rounded, exact.astype(np.float32), exact).passed
    assert not judge_noise("y", 0, np.float32([1, 2, 3.1]), exact.astype(np.float32), exact).passed


def test_no_error_is_no_bug_and_its_ratio_is_0() -> None:
    zeros = np.zeros(3, np.float32)
    assert judge_noise("y", 0, zeros, zeros, np.zeros(3)).ratio == 0


def test_infinity_is_a_bug_unless_float32_itself_overflows() -> None:
    exact, plain = np.array([1.0, 1e60, math.nan]), np.array([1.0, math.inf, math.nan], np.float32)
    assert judge_noise("y", 0, plain, plain, exact).passed
    suspect = np.array([math.inf, math.inf, math.nan], np.float32)
    found = judge_noise("y", 0, suspect, plain, exact)
    assert found.ratio == math.inf
    assert found.reason == "1 element is NaN or infinite, but finite in a plain run and float64"


def test_integers_strings_and_shapes_are_judged_by_what_plain_float32_gets_right() -> None:
    exact = np.array([3, 5])
    assert judge_noise("y", 0, exact, exact, exact).passed
    assert judge_noise("y", 0, np.array([3, 6]), exact, exact).reason == "it differs where a plain run has no error"
    assert judge_noise("y", 0, np.array([3, 6]), np.array([4, 5]), exact).passed
    words = np.array(["a", "b"])
    assert judge_noise("y", 0, words, words, words.astype(object)).passed
    assert not judge_noise("y", 0, np.array(["a", "c"]), words, words).passed
    assert judge_noise("y", 0, np.ones(2), np.ones(3), np.ones(3)).reason == "shapes differ: [2], expected [3]"


@given(st.floats(1, 1e6), st.integers(0, 100))
def test_the_verdict_is_the_ratio_against_its_limit(limit: float, seed: int) -> None:
    suspect, plain, exact = product(seed, 16)
    found = judge_noise("y", 0, suspect + np.float32(1e-4), plain, exact, limit)
    assert found.passed == (found.ratio <= limit)


# Runs


def result(name: str, **outputs: Array) -> RunnerResult:
    return RunnerResult(name, (Iteration(outputs),) * 2)


def judged(**limits: float) -> tuple[NoiseComparison, ...]:
    suspect, plain, exact = product(0)
    report = compare_noise(
        result("s", y=suspect, z=suspect + np.float32(1), only=suspect),
        result("p", y=plain, z=plain),
        result("e", y=exact, z=exact),
        {name.replace("every", ""): value for name, value in limits.items()},
    )
    assert report.only_suspect == ("only",)
    json.dumps(noise_tree(report), allow_nan=False)
    return report.failures


def test_outputs_are_judged_one_by_one_with_limits_of_their_own() -> None:
    assert [(found.name, found.iteration) for found in judged()] == [("z", 0), ("z", 1)]
    assert not judged(z=1e9)
    assert len(judged(every=1e-9)) == 4


def test_nothing_in_common_is_no_verdict() -> None:
    with pytest.raises(errors.CannotCompare, match="no output in common"):
        compare_noise(result("s", a=np.ones(1)), result("p", b=np.ones(1)), result("e", b=np.ones(1)))


def test_a_bug_is_told_with_both_errors_and_both_values() -> None:
    exact = np.array([1.0, 2.0])
    plain = np.nextafter(exact.astype(np.float32), np.float32(9))
    lines = noise_lines(judge_noise("y", 0, np.float32([1, 2.5]), plain, exact))
    assert lines[0].startswith("y  float32[2]  BUG: its error is 2.1e+06 times the rounding error of a plain run (")
    assert lines[1:] == [
        "  error     rms 0.354, greatest 0.5, at [1]: 2.5, expected 2",
        "  plain run rms 1.88e-07, greatest 2.38e-07, at [1]: 2, expected 2",
    ]
    assert noise_lines(judge_noise("y", 0, plain, plain, exact)) == [
        "y  float32[2]  rounding: 1 times the rounding error of a plain run"
    ]


def test_a_great_value_that_is_right_does_not_hide_that_the_small_ones_are_wrong() -> None:
    exact = np.linspace(0.1, 0.9, 32).reshape(4, 8)
    exact[:, 6:] = -1e9
    plain = exact.astype(np.float32)
    suspect = np.where(exact > 0, 0, plain).astype(np.float32)
    masked = judge_noise("y", 0, suspect, plain, exact)
    assert masked.verdict == "bug" and masked.part is not None
    assert judge_noise("y", 0, plain, plain, exact).verdict == "rounding"


def test_where_a_plain_run_overflows_only_values_near_those_of_float64_are_rounding() -> None:
    exact, plain = np.array([1.0, 1e43, 2.0]), np.array([1, np.inf, 2], np.float32)
    given = {5.0: "unknown", np.inf: "rounding", np.nan: "rounding"}
    for value, verdict in given.items():
        suspect = np.array([1, value, 2], np.float32)
        assert judge_noise("y", 0, suspect, plain, exact).verdict == verdict
    assert judge_noise("y", 0, exact, plain, exact).verdict == "rounding"


@pytest.mark.parametrize(
    ("suspect", "plain", "exact", "verdict"),
    [("0.1", "0.1", "0.10000000149", "rounding"), ("b", "0.1", "0.10000000149", "unknown"), ("b", "a", "a", "bug")],
)
def test_another_string_is_rounding_only_if_a_plain_run_gives_it(
    suspect: str, plain: str, exact: str, verdict: str
) -> None:
    sides = (np.array([text], object) for text in (suspect, plain, exact))
    assert judge_noise("y", 0, *sides).verdict == verdict
