"""Whether looking ahead is worth its time."""

import time
from pathlib import Path

import pytest

import biopsy
from biopsy import events
from biopsy.reduction.pace import Pace
from support.models import chain
from support.predicates import has


def paced(*, cost: float, waiting: float) -> Pace:
    """After a wait of some seconds in which this process idled."""
    pace = Pace(measured=True, at_first=2)
    with pace.waiting():
        time.sleep(waiting)
    pace.looked_ahead(cost, 1)
    return pace


def test_before_anything_is_known_few_checks_run_at_once() -> None:
    assert Pace(measured=True, at_first=2).at_once(16) == 2
    assert Pace(measured=True, at_first=16).at_once(4) == 4


def test_where_a_check_leaves_more_time_than_a_candidate_costs_as_many_run_as_may() -> None:
    assert paced(cost=0.001, waiting=0.1).at_once(16) == 16


def test_where_a_candidate_costs_more_than_a_check_leaves_one_runs() -> None:
    assert paced(cost=10.0, waiting=0.001).at_once(16) == 1


def test_where_it_cannot_be_measured_as_many_run_as_may() -> None:
    assert Pace(measured=False, at_first=1).at_once(16) == 16


def test_what_cost_nothing_says_nothing() -> None:
    pace = Pace(measured=True, at_first=2)
    pace.looked_ahead(10.0, 0)
    with pace.waiting():
        pass
    assert pace.at_once(16) == 2


@pytest.mark.parametrize("jobs", [2, 16])
def test_checks_of_a_function_that_is_slow_to_foresee_are_not_begun_in_vain(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "looked_ahead", _as_if_slow(Pace.looked_ahead))
    told: list[events.Event] = []
    biopsy.reduce(chain(200), has("n50"), tmp_path / "r.onnx", takes="model", jobs=jobs, listener=told.append)
    assert sum(isinstance(event, events.Abandoned) for event in told) <= 2


def _as_if_slow(looked_ahead):  # type: ignore[no-untyped-def]
    return lambda pace, seconds, candidates: looked_ahead(pace, seconds + 1000.0, candidates)
