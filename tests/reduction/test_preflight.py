"""What is asked before a search, or beside its beginning: the answers are those of one question after the other."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from biopsy import errors, events
from biopsy.checks.outcome import Outcome
from support.models import chain
from support.predicates import has, names
from support.reducer import Predicate

LIMIT = 60.0
IDENTITY = [""]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def stages(told: list[events.Event]) -> Counter[str]:
    """How many runs were waited for, by what they were for."""
    return Counter(event.stage for event in told if isinstance(event, events.CheckedCandidate))


@pytest.mark.parametrize("wanted", [("n7",), ("n3", "n11")])
def test_the_search_beside_preflight_asks_and_finds_the_same(reducer, threads, wanted: tuple[str, ...]) -> None:
    first: list[events.Event] = []
    one = reducer(chain(16), has(*wanted), listener=first.append)
    result = reducer.result
    for jobs in (2, 3):
        told: list[events.Event] = []
        several = reducer(chain(16), has(*wanted), listener=told.append, jobs=jobs, executor=threads)
        assert reducer.result == result
        assert several.outcomes == one.outcomes
        assert stages(told) == stages(first)
        done = [(event.stage, event.checks) for event in told if isinstance(event, events.PassDone)]
        assert done == [(event.stage, event.checks) for event in first if isinstance(event, events.PassDone)]


class Steps:
    """A predicate that a test holds back at the original, from a given run of it on."""

    def __init__(self, fails: Predicate, free: int) -> None:
        self.fails = fails
        self.let_go = threading.Event()
        self.originals = 0
        self.candidates = threading.Event()
        self._free = free
        self._lock = threading.Lock()

    def __call__(self, model: onnx.ModelProto) -> bool:
        found = names(model)
        if len(found) == 16:
            with self._lock:
                self.originals += 1
                number = self.originals
            if number > self._free:
                assert self.candidates.wait(LIMIT)
                self.let_go.wait(LIMIT)
        elif found != IDENTITY:
            self.candidates.set()
        return self.fails(model)


def test_nothing_is_reported_or_written_before_the_original_fails_again(reducer, threads, tmp_path: Path) -> None:
    told: list[events.Event] = []
    fails = Steps(has("n7"), free=2)
    seen: list[bool] = []

    def look() -> None:
        assert fails.candidates.wait(LIMIT)
        fails.let_go.wait(1)
        seen.append((tmp_path / "reduced.onnx").exists())
        seen.append(any(isinstance(event, events.PassDone) and event.after < event.before for event in told))
        fails.let_go.set()

    looking = threading.Thread(target=look)
    looking.start()
    reducer(chain(16), fails, listener=told.append, jobs=2, executor=threads)
    looking.join()
    assert seen == [False, False]
    assert fails.originals == 3
    assert names(reducer.result) == ["n7"]


@pytest.mark.parametrize("wrong", [2, 3])
def test_if_the_original_passes_beside_the_search_it_begins_again(reducer, threads, wrong: int) -> None:
    """The second run is waited for, since it began with the first; the third one is asked beside the search."""
    told: list[events.Event] = []
    runs = 0

    def fails(model: onnx.ModelProto) -> bool:
        nonlocal runs
        if len(names(model)) == 16:
            runs += 1
            return runs != wrong
        return has("n7")(model)

    reducer(chain(16), fails, listener=told.append, jobs=2, executor=threads)
    (flaky,) = (event for event in told if isinstance(event, events.FlakyFailure))
    assert (flaky.failed, flaky.runs) == (10, 11)
    assert names(reducer.result) == ["n7"]
    started = [number for number, event in enumerate(told) if isinstance(event, events.StageStarted)]
    told_at = told.index(flaky)
    assert not any(isinstance(event, events.PassDone) and event.after < event.before for event in told[:told_at])
    assert any(number > told_at for number in started)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_a_flaky_failure_ends_at_its_node_for_any_number_of_jobs(reducer, threads, rate: float, seed: int) -> None:
    import random

    chance = random.Random(seed)
    reducer(
        chain(60),
        lambda model: has("n17")(model) and chance.random() < rate,
        jobs=3,
        executor=threads,
    )
    assert names(reducer.result) == ["n17"]


def test_stopped_before_the_original_fails_again_there_is_no_result_but_it_can_resume(
    reducer, threads, tmp_path: Path
) -> None:
    journal = tmp_path / "the.journal"
    fails = Steps(has("n7"), free=2)
    found: list[events.CheckedCandidate] = []

    def stopped(event: events.Event) -> None:
        if isinstance(event, events.CheckedCandidate) and event.stage == "bisect":
            if any(before.outcome == Outcome.REPRODUCES.value for before in found):
                fails.let_go.set()
                raise KeyboardInterrupt
            found.append(event)

    with pytest.raises(errors.Interrupted) as raised:
        reducer(chain(16), fails, listener=stopped, jobs=2, executor=threads, journal=journal)
    assert f"answers in {journal}" in str(raised.value.kept)
    assert "reduced.onnx" not in str(raised.value.kept)
    assert not (tmp_path / "reduced.onnx").exists()
    again = Steps(has("n7"), free=16)
    reducer(chain(16), again, jobs=2, executor=threads, journal=journal)
    assert again.originals == 3  # nobody knows yet how steadily it fails
    assert names(reducer.result) == ["n7"]


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_a_check_that_fails_on_anything_writes_nothing(reducer, threads, tmp_path: Path, jobs: int) -> None:
    with pytest.raises(errors.CheckError, match="one Identity node") as raised:
        reducer(chain(16), lambda model: True, jobs=jobs, executor=threads)
    assert raised.value.kept == "nothing was written"
    assert not (tmp_path / "reduced.onnx").exists()


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_a_check_that_fails_on_anything_may_be_allowed(reducer, threads, jobs: int) -> None:
    told: list[events.Event] = []
    options = {"jobs": jobs, "executor": threads, "allow_vacuous_check": True, "listener": told.append}
    reducer(chain(16), lambda model: True, **options)
    remarks = [event.text for event in told if isinstance(event, events.Remark)]
    assert sum("says nothing" in text for text in remarks) == 1


@pytest.mark.parametrize("most", range(1, 7))
def test_a_limit_on_checks_counts_those_beside_the_search(reducer, threads, most: int) -> None:
    left = []
    for jobs in (1, 2):
        reduction = reducer(chain(16), has("n7"), max_checks=most, jobs=jobs, executor=threads)
        assert reduction.stopped == f"--max-checks {most}"
        left.append(len(reduction.nodes))
    assert left[0] == left[1]
