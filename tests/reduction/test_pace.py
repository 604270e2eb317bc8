"""Whether looking ahead is worth its time."""

import threading
import time
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy import events
from biopsy.reduction.driver import Pace
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
    assert Pace(measured=True, at_first=2).at_once(16, 0.5) == 2
    assert Pace(measured=True, at_first=16).at_once(4, 0.5) == 4


def test_if_a_check_leaves_more_time_than_a_candidate_costs_all_jobs_run() -> None:
    assert paced(cost=0.001, waiting=0.1).at_once(16, 0.5) == 16


def test_if_a_candidate_costs_more_than_a_check_leaves_one_check_runs() -> None:
    assert paced(cost=10.0, waiting=0.001).at_once(16, 0.5) == 1


def test_if_it_cannot_be_measured_all_jobs_run() -> None:
    assert Pace(measured=False, at_first=1).at_once(16, 0.5) == 16


def test_a_less_likely_candidate_must_save_more() -> None:
    pace = paced(cost=0.1, waiting=0.1)  # as much as it saves
    assert 0.2 < pace.least_chance < 0.8
    assert pace.in_a_row(16, 0.9) == 1
    assert pace.in_a_row(16, 0.0) == 16
    assert pace.in_a_row(2, 0.0) == 2


class Computing:
    """A clock on which a check takes time, in which this process computes and never idles."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = monotonic = perf_counter
    thread_time = staticmethod(time.thread_time)


@pytest.mark.parametrize("jobs", [2, 4, 16, 64])
@pytest.mark.parametrize("wanted", [("n50",), ("n20", "n170")])
def test_functions_that_take_turns_are_asked_as_often_as_one_after_the_other_and_in_the_thread_that_asks(
    jobs: int, wanted: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Computing()
    monkeypatch.setattr("biopsy.reduction.driver.time", clock)
    monkeypatch.setattr("biopsy.reduction.driver._waited_for_a_core", lambda: 0.0)
    threads: list[bool] = []

    def check(model: onnx.ModelProto) -> bool:
        clock.now += 0.01
        threads.append(threading.current_thread() is threading.main_thread())
        return has(*wanted)(model)

    def asked(jobs: int) -> list[bool]:
        threads.clear()
        biopsy.reduce(chain(200), check, tmp_path / f"{jobs}.onnx", takes="model", jobs=jobs)
        return list(threads)

    alone, several = asked(1), asked(jobs)
    assert len(several) <= len(alone) + 1  # the one by which it is measured
    assert sum(not here for here in several) <= 10 + 5 * (len(wanted) > 1)  # before the search, and at its end
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / f"{jobs}.onnx").read_bytes()


def test_no_foreseen_candidates_are_no_measurement() -> None:
    pace = Pace(measured=True, at_first=2)
    pace.looked_ahead(10.0, 0)
    with pace.waiting():
        pass
    assert pace.at_once(16, 0.5) == 2


@pytest.mark.parametrize("jobs", [2, 16])
def test_checks_that_are_slow_to_foresee_are_not_begun_in_vain(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "looked_ahead", _as_if_slow(Pace.looked_ahead))
    told: list[events.Event] = []
    biopsy.reduce(
        chain(200),
        has("n50"),
        tmp_path / "r.onnx",
        takes="model",
        jobs=jobs,
        listener=told.append,
    )
    assert sum(isinstance(event, events.Abandoned) for event in told) <= 2


def _as_if_slow(looked_ahead):  # type: ignore[no-untyped-def]
    return lambda pace, seconds, candidates: looked_ahead(pace, seconds + 1000.0, candidates)
