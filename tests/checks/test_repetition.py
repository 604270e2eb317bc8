"""What is said of rates, held against direct computation; and running a command again and again."""

import contextlib
import math
import time
from collections.abc import Collection, Generator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Outcome
from biopsy.checks.repetition import NO_CANDIDATE, RepeatedRun, RunTally, interval, rate_text, repeated, runs_needed

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
    with pytest.raises(ValueError, match="no count"):
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


# Running again and again


def repetition(
    *words: str, times: int | None = None, jobs: int = 1, timeout: float | None = None, begun: list[int] | None = None
) -> Generator[RepeatedRun, None, None]:
    check = CommandCheck(words, str(NO_CANDIDATE), timeout)

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        assert len(running) < jobs
        assert number not in running
        if begun is not None:
            begun.append(number)
        return check

    return repeated(begin, Rules(), times, jobs)


def test_with_one_job_a_run_begins_when_the_one_before_has_been_dealt_with() -> None:
    begun: list[int] = []
    for run in repetition("true", times=4, begun=begun):
        assert begun == list(range(run.number + 1))
    assert begun == [0, 1, 2, 3]


def test_runs_are_told_in_the_order_in_which_they_began_so_that_quick_failures_do_not_count_first() -> None:
    """The first run passes late, all others fail at once: who ends with a failure has seen one of two runs fail."""
    begun: list[int] = []

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        begun.append(number)
        return CommandCheck(["false"] if number else ["sleep", "0.5"], str(NO_CANDIDATE))

    outcomes = []
    with contextlib.closing(repeated(begin, Rules(), None, 4)) as runs:
        for run in runs:
            outcomes.append(run.judged.outcome)
            if run.judged.outcome is Outcome.REPRODUCES:
                break
    assert outcomes == [Outcome.PASSES, Outcome.REPRODUCES]
    assert 4 < len(begun) <= 64 + 4  # nobody waited for it


def test_each_run_is_told_once_however_many_run_at_once() -> None:
    for jobs in (1, 3, 8):
        assert [run.number for run in repetition("true", times=10, jobs=jobs)] == list(range(10))


@pytest.mark.slow
def test_without_an_end_it_goes_on_until_it_is_closed(tmp_path: Path) -> None:
    """And what still runs is ended: it would leave a file otherwise."""
    started = time.monotonic()
    late = tmp_path / "late"
    line = f"mkdir '{tmp_path}/first' && exit 3; sleep 5; touch '{late}'"
    with contextlib.closing(repetition("sh", "-c", line, jobs=3)) as runs:
        assert next(runs).judged.evidence.status == 3
    assert time.monotonic() - started < 4
    time.sleep(max(0.0, started + 5.5 - time.monotonic()))
    assert not late.exists()


def test_a_program_that_is_missing_is_told_by_the_exception_of_the_check() -> None:
    with pytest.raises(errors.CheckError, match="no program"):
        list(repetition("no-such-program", times=2, jobs=2))


def test_braces_stay_what_they_are(tmp_path: Path) -> None:
    """There is no candidate that they could stand for."""
    line = 'test "$1" = "{""}" && test "$2" = "a{""}b"'
    (run,) = repetition("sh", "-c", line, "sh", "{}", "a{}b", times=1)
    assert run.judged.outcome is Outcome.PASSES


def test_out_of_time_is_neither_passed_nor_failed() -> None:
    (run,) = repetition("sleep", "60", times=1, timeout=0.2)
    assert run.judged.outcome is Outcome.TIMED_OUT
    tally = RunTally("status")
    assert not tally.add(run)
    assert (tally.runs, tally.decided, tally.undecided) == (1, 0, {Outcome.TIMED_OUT: 1})


def test_only_the_first_failure_of_a_kind_is_a_new_one() -> None:
    tally = RunTally("status")
    runs = [next(repetition("sh", "-c", f"exit {status}")) for status in (0, 1, 2, 1)]
    assert [tally.add(run) for run in runs] == [False, True, True, False]
    assert [(kind.reason, kind.times) for kind in tally.kinds] == [("exit status 1", 2), ("exit status 2", 1)]
    assert (tally.passed, tally.failed) == (1, 3)


def test_any_failure_may_be_taken_for_the_same() -> None:
    tally = RunTally("any")
    for status in (1, 2):
        tally.add(next(repetition("sh", "-c", f"exit {status}")))
    assert [kind.times for kind in tally.kinds] == [2]
