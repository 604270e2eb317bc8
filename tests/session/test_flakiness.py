"""Flaky failures: what a steady one costs, how a wavering one is noticed, and what is concluded then."""

import random
from collections.abc import Callable

import onnx
import pytest

from benchmarks.simulated_clock import SimulatedClock
from biopsy import errors, events
from biopsy.checks.judge import passes_needed, signature_of
from biopsy.checks.outcome import Outcome
from biopsy.session.checked_search import Flakiness
from biopsy.session.trial import ORIGINAL
from support.models import chain
from support.predicates import has, names
from support.session import Answers, Session, trial

Predicate = Callable[[onnx.ModelProto], bool]


def sometimes(fails: Predicate, rate: float, seed: int = 1) -> Predicate:
    """The failure, shown at a rate."""
    chance = random.Random(seed)
    return lambda model: fails(model) and chance.random() < rate


def is_flaky(told: list[events.Event]) -> list[events.FlakyFailure]:
    return [event for event in told if isinstance(event, events.FlakyFailure)]


def test_a_steady_failure_costs_two_checks_more_and_three_or_eight_by_what_is_left(reducer) -> None:
    """Three of an Identity node if a single node is left, eight of the result if there are several."""
    for wanted, more in ((("n7",), 5), (("n3", "n11"), 10)):
        sure = reducer(chain(16), has(*wanted))
        told: list[events.Event] = []
        quick = reducer(chain(16), has(*wanted), repeat=1, listener=told.append)
        assert sure.checks == quick.checks + more
        assert not is_flaky(told)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_a_flaky_failure_ends_at_its_node(reducer, rate: float, seed: int) -> None:
    told: list[events.Event] = []
    reducer(chain(200), sometimes(has("n77"), rate, seed), listener=told.append)
    assert names(reducer.result) == ["n77"]


def test_the_rate_is_measured_and_says_how_often_a_candidate_must_pass(reducer) -> None:
    told: list[events.Event] = []
    reducer(chain(50), sometimes(has("n7"), 0.3, seed=1), confidence=0.95, listener=told.append)
    (found,) = is_flaky(told)
    assert (found.failed, found.runs) == (10, 27)
    assert found.confidence == 0.95
    assert found.needed == passes_needed(found.failed, found.runs, 0.95)


@pytest.mark.parametrize("rate", [0.4, pytest.param(0.7, marks=pytest.mark.slow)])
def test_a_check_that_fails_at_random_on_anything_gives_no_result(reducer, rate: float) -> None:
    """Of 100 reductions, none or one may end with nodes by luck, and what is said of the Identity node is no luck."""
    by_luck, ends = 0, []
    for seed in range(100):
        try:
            reducer(chain(8), sometimes(lambda model: True, rate, seed))
            by_luck += 1
        except errors.BiopsyError as error:
            ends.append(error)
    assert by_luck <= 1
    assert sum("what fails is no node" in line for error in ends for line in error.details) <= 1


def test_repeat_is_taken_at_its_word(reducer) -> None:
    told: list[events.Event] = []
    calls: dict[tuple[str, ...], int] = {}

    def fails(model: onnx.ModelProto) -> bool:
        key = tuple(names(model))
        calls[key] = calls.get(key, 0) + 1
        return "n5" in key and calls[key] % 3 == 0

    reducer(chain(20), fails, repeat=3, listener=told.append)
    assert names(reducer.result) == ["n5"]
    assert not is_flaky(told)
    assert max(count for key, count in calls.items() if "n5" not in key and len(key) > 1) == 3


def test_an_original_that_passes_is_tried_sixteen_times(reducer) -> None:
    with pytest.raises(errors.OriginalPasses, match="in 16 runs"):
        reducer(chain(3), lambda model: False)
    assert len(reducer.seen) == 16 + 1  # once with every tensor marked


def test_a_result_of_several_nodes_is_doubted_until_it_has_failed_eight_times_more(reducer) -> None:
    """A failure that begins to waver after the search has begun."""
    count = 0
    told: list[events.Event] = []

    def fails(model: onnx.ModelProto) -> bool:
        nonlocal count
        count += 1
        return "n9" in names(model) and (count < 6 or count % 3 > 0)

    reducer(chain(100), fails, listener=told.append)
    assert names(reducer.result) == ["n9"]


@pytest.mark.parametrize("repeat", [None, 4])
def test_a_result_that_fails_more_rarely_than_a_steady_original_is_one_only_if_that_is_said(reducer, repeat) -> None:
    """It may be another failure that looks the same."""
    count = 0
    told: list[events.Event] = []

    def fails(model: onnx.ModelProto) -> bool:
        nonlocal count
        count += 1
        if names(model) == [""]:
            return False  # the Identity model
        return names(model) == ["n0"] and count % 4 == 0 if len(model.graph.node) == 1 and count > 5 else True

    if repeat is None:
        with pytest.raises(errors.CheckError, match="the original failed in 10 of 10 runs, the result only in"):
            reducer(chain(2), fails, listener=told.append)
        return
    reducer(chain(2), fails, listener=told.append, repeat=repeat)
    (verified,) = (event for event in told if isinstance(event, events.Verified))
    assert verified.failed == 1
    assert verified.runs >= 1


@pytest.mark.parametrize("jobs", [2, 16, 64])
def test_the_measured_rate_is_that_of_the_runs_in_their_order_however_many_run_at_once(
    session: Session, jobs: int
) -> None:
    """Failures end ten times as soon as passing runs: those that end first would show a higher rate."""
    chance = random.Random(5)
    statuses = [1, *(int(chance.random() < 0.3) for _ in range(200))]

    def measured(jobs: int) -> events.Event:
        clock = SimulatedClock(lambda evidence: 0.1 if evidence.status else 1.0)
        oracle = session.oracle(Answers({"original": list(statuses)}), jobs, executor=clock)
        flakiness = Flakiness(oracle)
        judged, tries = flakiness.failure(lambda: trial("original", ORIGINAL), at_once=True)
        assert judged.outcome is Outcome.REPRODUCES
        flakiness.begin(trial("original", ORIGINAL), tries)
        (flaky,) = session.of(events.FlakyFailure)
        session.told.clear()
        return flaky

    alone = measured(1)
    assert measured(jobs) == alone


@pytest.mark.parametrize(("other", "words"), [(0, ""), (-6, ", and in another way in 9 of them (signal SIGABRT)")])
def test_runs_that_fail_in_another_way_are_told_apart_from_those_that_pass(
    session: Session, other: int, words: str
) -> None:
    oracle = session.oracle(Answers({"original": [1, other] * 20}))
    flakiness = Flakiness(oracle)
    judged, tries = flakiness.failure(lambda: trial("original", ORIGINAL))
    oracle.failure.reference = signature_of(judged.evidence)
    flakiness.begin(trial("original", ORIGINAL), tries)
    (flaky,) = session.of(events.FlakyFailure)
    assert flaky.failed == 10 and flaky.beside == words
