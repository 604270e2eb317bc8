"""What a search may cost: counted always, refused only while the search goes on."""

import pytest

from biopsy.session.trial import Budget, BudgetMeter, BudgetSpentError


def test_without_limits_nothing_is_refused() -> None:
    meter = BudgetMeter()
    with meter.enforced():
        for _ in range(1000):
            meter.spend()
        assert meter.seconds_left is None
        assert meter.allows(1000)


def test_the_run_after_the_last_is_refused_and_the_error_names_the_limit() -> None:
    meter = BudgetMeter(Budget(checks=2))
    with meter.enforced():
        meter.spend()
        meter.spend()
        with pytest.raises(BudgetSpentError, match="--max-checks 2"):
            meter.spend()


def test_runs_before_the_search_count_and_runs_after_it_are_free() -> None:
    meter = BudgetMeter(Budget(checks=1))
    meter.spend()
    with meter.enforced(), pytest.raises(BudgetSpentError):
        meter.spend()
    meter.spend()


def test_a_search_within_a_search_does_not_end_the_limits_of_the_outer_one() -> None:
    meter = BudgetMeter(Budget(checks=0))
    with meter.enforced():
        with meter.enforced():
            pass
        with pytest.raises(BudgetSpentError):
            meter.spend()


def test_when_the_time_is_up_no_run_begins() -> None:
    meter = BudgetMeter(Budget(seconds=0))
    assert meter.seconds_left is None
    with meter.enforced():
        assert meter.seconds_left == 0
        with pytest.raises(BudgetSpentError, match="--max-time 0"):
            meter.spend()


def test_nothing_is_begun_ahead_that_could_not_be_asked_for() -> None:
    meter = BudgetMeter(Budget(checks=3))
    meter.spend()
    with meter.enforced():
        assert meter.allows(2)
        assert not meter.allows(3)
    assert meter.allows(3)
