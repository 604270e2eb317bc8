"""A command that is run again and again, by whoever runs checks: here or on other machines, several at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from contextlib import closing
from itertools import count

from biopsy.checks.judge import Rules, judge_any_failure
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.repetition import RepeatedRun
from biopsy.checks.task import NO_CANDIDATE, Task
from biopsy.session.runs_in_order import in_order
from biopsy.session.workers import Threads, Workers

_MOST_WAITING = 16
"""Runs that have ended before one that was begun earlier, for each that may run at once."""


def repeated(
    begin: Callable[[int, Collection[int]], Check],
    rules: Rules,
    times: int | None,
    jobs: int,
    first: int = 0,
    workers: Workers | None = None,
) -> Generator[RepeatedRun, None, None]:
    """Run a check ``times`` times, or for ever if None, up to ``jobs`` at once; yields the runs as they were begun.

    The first to end are not the first to be told of: runs that fail soon would be counted before those that pass late,
    and who ends with one of them would measure too high a rate. So what is counted when it is closed is what would have
    been without ``jobs``. The first ``first`` runs are left out: they are known. ``begin`` is called with the number of
    a run just before it begins, and with the numbers of those that go on; it returns the check to run. With one job the
    next run does not begin before the one that was yielded has been dealt with, so its files may be moved. ``workers``
    run the checks, threads of our own if None; they are ended with the runs. Closing the generator ends what still
    runs, and so does any exception. Raises CheckError if the check cannot be run.
    """
    numbers = count(first) if times is None else range(first, times)
    workers = workers or Threads(jobs)

    def task(number: int, running: Collection[int]) -> Future[Evidence]:
        return workers.begin(Task(begin(number, set(running)), NO_CANDIDATE, None))

    try:
        with closing(in_order(numbers, task, workers, jobs=jobs, waiting=_MOST_WAITING)) as ended:
            for number, evidence in ended:
                yield RepeatedRun(number, judge_any_failure(evidence, rules))
    finally:
        workers.close()
