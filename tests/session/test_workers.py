"""Who runs checks: what holds of threads of our own, and of an executor of the caller's."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from biopsy import errors
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Inline, Task
from biopsy.session.pool import Threads, Workers
from support.session import LIMIT, Answers

MADE: dict[str, Callable[[ThreadPoolExecutor], Workers]] = {
    "threads": lambda executor: Threads(2),
    "in this thread": lambda executor: Threads(1, Inline()),
    "an executor": lambda executor: Threads(1, executor),
}


@pytest.fixture(params=MADE.values(), ids=MADE)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with ThreadPoolExecutor(2) as executor:
        made: Workers = request.param(executor)
        yield made
        made.close()


def task(check: Answers, folder: Path, name: str) -> Task:
    return Task(check, folder / f"{name}.onnx", [name.encode()])


def test_a_run_ends_with_what_the_check_leaves(workers: Workers, tmp_path: Path) -> None:
    run = workers.begin(task(Answers({"a": [7]}), tmp_path, "a"))
    workers.wait([run], LIMIT)
    assert run.result().status == 7
    assert isinstance(workers, Workers)


def test_what_a_run_raises_is_raised_where_it_is_heard(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = workers.begin(task(Answers(), tmp_path / "file", "a"))
    workers.wait([run], LIMIT)
    with pytest.raises(errors.CheckError, match="file"):
        run.result()


@pytest.mark.parametrize("is_stoppable", [False, True])
def test_only_a_check_that_heeds_it_is_told_to_stop(tmp_path: Path, *, is_stoppable: bool) -> None:
    check, workers = Answers(is_stoppable=is_stoppable), Threads(1)
    workers.wait([workers.begin(task(check, tmp_path, "a"))], LIMIT)
    workers.close()
    assert check.can_stop == [is_stoppable]


def test_a_run_that_is_stopped_has_ended_only_once_its_check_has(tmp_path: Path) -> None:
    check, workers = Answers(is_stoppable=True), Threads(1)
    check.hold("a")
    run = workers.begin(task(check, tmp_path, "a"))
    assert check.begun["a"].wait(LIMIT)
    workers.stop(run)
    workers.wait([run], LIMIT)
    assert check.stopped == ["a"]
    workers.close()


def test_the_first_of_several_to_end_ends_the_wait(tmp_path: Path) -> None:
    check, workers = Answers(is_stoppable=True), Threads(2)
    gate = check.hold("slow")
    slow, quick = (workers.begin(task(check, tmp_path, name)) for name in ("slow", "quick"))
    workers.wait([slow, quick], LIMIT)
    assert (slow.done(), quick.done()) == (False, True)
    gate.set()
    workers.close()


def test_nobody_waits_longer_than_they_say(workers: Workers) -> None:
    before, never = monotonic(), Future[Evidence]()
    workers.wait([never], 0.01)
    assert monotonic() - before < LIMIT / 2
    assert not never.done()
