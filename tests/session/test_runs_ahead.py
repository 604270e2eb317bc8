"""Runs that are begun before anybody asks for them."""

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task
from biopsy.session.pool import RunsAhead


class Held:
    """Workers whose runs end when somebody waits for them; ``begun`` and ``stopped`` are told in their order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.runs: dict[int, Future[str]] = {}
        self.stopped: list[str] = []

    def begin_named(self, name: str) -> Future[str]:
        self.begun.append(name)
        run = self.runs[len(self.begun) - 1] = Future()
        return run

    def begin(self, task: Task) -> Future[Evidence]:
        raise AssertionError("nothing else is begun")

    def stop(self, run: Future[Any]) -> None:
        self.stopped += [self.begun[number] for number, each in self.runs.items() if each is run]

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        for number, each in self.runs.items():
            if each in runs:
                each.set_result(f"{self.begun[number]}{number}")

    def close(self) -> None:
        """Nothing goes on."""


def ahead(workers: Held, most: int | None = None) -> RunsAhead[str, str]:
    return RunsAhead(workers.begin_named, str.lower, workers, most)


def test_who_asks_gets_the_oldest_run_and_what_it_was_begun_for() -> None:
    workers = Held()
    runs = ahead(workers)
    runs.expect("A", 2)
    assert [runs.result("a") for _ in range(3)] == [("A", "A0"), ("A", "A1"), ("a", "a2")]


def test_what_is_expected_twice_is_begun_once() -> None:
    workers = Held()
    runs = ahead(workers)
    runs.expect("a", 2)
    runs.expect("a", 3)
    assert workers.begun == ["a"] * 3


def test_no_more_go_on_ahead_than_have_room() -> None:
    workers = Held()
    runs = ahead(workers, most=2)
    runs.expect("a")
    runs.expect("b", 5)
    assert workers.begun == ["a", "b"]
    assert runs.result("c") == ("c", "c2")
    assert runs.result("a") == ("a", "a0")
    runs.expect("b", 5)
    assert workers.begun == ["a", "b", "c", "b"]


def test_runs_that_nobody_will_ask_for_are_stopped() -> None:
    workers = Held()
    runs = ahead(workers)
    for name in "abc":
        runs.expect(name, 2)
    runs.forget("A")
    assert workers.stopped == ["a", "a"]
    runs.forget_all(but=["B"])
    assert workers.stopped == ["a", "a", "c", "c"]
    assert runs.result("a") == ("a", "a6")
