"""What is said of rates, held against direct computation."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from biopsy.checks.judge import RUNS_TO_TELL_APART, interval, passes_needed, rate_text, runs_needed

COUNTS = st.integers(0, 2000).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs)))
RATES = st.floats(0.01, 0.999)
CONFIDENCES = st.floats(0.01, 0.9999)


@given(COUNTS, st.floats(0.1, 5))
def test_bounds_are_the_rates_from_which_the_measured_one_is_z_deviations_away(
    count: tuple[int, int], z: float
) -> None:
    """The definition of the score interval: |measured - p| = z * sqrt(p * (1 - p) / n) at both ends."""
    hits, runs = count
    assume(runs > 0)
    for bound in interval(hits, runs, z):
        assert abs(hits / runs - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / runs), abs=1e-9)


@given(COUNTS)
def test_the_interval_holds_what_was_measured_and_stays_within_0_and_1(count: tuple[int, int]) -> None:
    hits, runs = count
    lower, upper = interval(hits, runs)
    assert 0 <= lower < upper <= 1
    assert runs == 0 or lower <= hits / runs <= upper


@given(COUNTS)
def test_what_passes_is_as_sure_as_what_fails(count: tuple[int, int]) -> None:
    hits, runs = count
    lower, upper = interval(hits, runs)
    assert interval(runs - hits, runs) == pytest.approx((1 - upper, 1 - lower))


def test_never_and_always_have_one_exact_end() -> None:
    assert interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert interval(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)


def test_without_a_run_nothing_is_known() -> None:
    assert interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "runs"), [(-1, 3), (4, 3), (0, -1)])
def test_counts_that_cannot_be_are_refused(hits: int, runs: int) -> None:
    with pytest.raises(ValueError, match="not a count"):
        interval(hits, runs)


@settings(deadline=None)
@given(RATES, CONFIDENCES)
@example(0.5, 0.75)
@example(0.9, 0.99)
@example(0.1, 0.1)
def test_the_number_of_runs_is_the_least_that_is_enough(rate: float, confidence: float) -> None:
    n, misses, allowed = runs_needed(rate, confidence), 1 - Fraction(rate), 1 - Fraction(confidence)
    nearly = Fraction(1, 10**9)
    assert n >= 1
    assert misses**n <= allowed * (1 + nearly)
    assert n == 1 or misses ** (n - 1) > allowed * (1 - nearly)


@pytest.mark.parametrize(
    ("rate", "confidence", "runs"), [(0.5, 0.75, 2), (0.9, 0.99, 2), (0.35, 0.99, 11), (0.01, 0.99, 459), (1, 0.9, 1)]
)
def test_known_numbers_of_runs(rate: float, confidence: float, runs: int) -> None:
    assert runs_needed(rate, confidence) == runs


@given(st.floats(0.05, 1))
@example(0.4)
@example(3 / 7)
def test_a_flaky_failure_is_said_to_be_gone_in_less_than_one_case_in_a_hundred(rate: float) -> None:
    """The exact chance: three runs, or twenty if these disagree, and then as many passes as the rule asks for."""
    passes = 1 - rate
    luck = rate**3 * passes ** passes_needed(3, 3)
    for failed in range(1, 21):
        ways = math.comb(20, failed) - (math.comb(17, failed - 3) if failed >= 3 else 0)
        luck += ways * rate**failed * passes ** (20 - failed + passes_needed(failed, 20))
    assert luck <= 0.01


@given(st.integers(1, 40), CONFIDENCES)
def test_no_rate_explains_failures_and_then_as_many_passes_as_are_needed(failed: int, confidence: float) -> None:
    needed = passes_needed(failed, failed, confidence)
    rates = [place / 200 for place in range(1, 200)]
    assert all(rate**failed * (1 - rate) ** needed <= (1 - confidence) * (1 + 1e-9) for rate in rates)


def test_the_more_often_a_failure_showed_the_fewer_passes_are_needed() -> None:
    assert [passes_needed(runs, runs) for runs in (1, 2, 3, 4, 7)] == [37, 7, 4, 3, 2]
    assert RUNS_TO_TELL_APART == 4
    assert passes_needed(10, 20) > passes_needed(20, 20)
    assert passes_needed(0, 5) == 1


def test_a_rate_that_no_float_tells_from_certainty_of_passing_still_has_its_number() -> None:
    assert runs_needed(1e-18, 0.99) == pytest.approx(4.605e18, rel=1e-3)


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, math.nan])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        runs_needed(rate, 0.99)


@pytest.mark.parametrize("confidence", [0, 1, -1, 2, math.nan])
def test_what_is_no_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        runs_needed(0.5, confidence)


@pytest.mark.parametrize(
    ("hits", "runs", "text"),
    [
        (7, 20, "7 of 20, 35 % (95 % sure: 18 to 57 %)"),
        (0, 10, "0 of 10, 0 % (95 % sure: 0 to 28 %)"),
        (10, 10, "10 of 10, 100 % (95 % sure: 72 to 100 %)"),
        (1, 20000, "1 of 20000, 0.005 % (95 % sure: 0.00088 to 0.028 %)"),
        (999, 1000, "999 of 1000, 99.9 % (95 % sure: 99.44 to 99.982 %)"),
        (0, 0, "0 of 0"),
    ],
)
def test_a_rate_is_told_with_how_sure_it_is(hits: int, runs: int, text: str) -> None:
    assert rate_text(hits, runs) == text


@given(COUNTS)
def test_only_never_and_always_are_told_as_0_and_100_percent(count: tuple[int, int]) -> None:
    hits, runs = count
    assume(0 < hits < runs)
    measured = rate_text(hits, runs).partition(", ")[2].partition(" %")[0]
    assert 0 < float(measured) < 100
