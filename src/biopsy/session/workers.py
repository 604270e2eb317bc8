"""Who runs checks, threads of our own or whoever a caller gives; and runs in a row that are begun ahead, told of in
their order, or repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import count, islice
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.repetition import RepeatedRun
from biopsy.checks.task import NO_CANDIDATE, Inline, Task, run_check
from biopsy.processes.watch import Stop
from biopsy.session.judging import judge_any_failure


@runtime_checkable
class Workers(Protocol):
    """Runs checks, several at once, here or on other machines.

    All methods are called from one thread. What a run raises is in its future. A machine that dies says nothing about
    a model: who has machines runs the check again elsewhere, and raises CheckError once that is in vain.
    """

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run."""

    def stop(self, run: Future[Any]) -> None:
        """Say that nobody waits for a run any more: it ends soon, with all that it has started, or as soon as it can.

        Its future is done once it has ended, and not before.
        """

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        """Return once one of these runs has ended, or after so many seconds."""

    def close(self) -> None:
        """End what still runs, and wait for that."""


class Threads:
    """Threads of this process: as many checks at once as are begun, but at least ``jobs``.

    A check that cannot be stopped is waited for at the end.
    """

    def __init__(self, jobs: int, *, inline: bool = False) -> None:
        # Some may still be ending while others begin.
        self._executor: Executor = Inline() if inline else ThreadPoolExecutor(2 * jobs, "biopsy-check")
        self._stops: dict[Future[Evidence], Stop] = {}

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run; in this thread if they are to be ``inline``."""
        self._free_ended()
        if not task.check.stoppable:
            return self._executor.submit(run_check, task)
        stop = Stop()
        run = self._executor.submit(run_check, task, stop)
        self._stops[run] = stop
        return run

    def stop(self, run: Future[Evidence]) -> None:
        """Have it never begin, or have its check stopped."""
        stop = self._stops.get(run)
        if not run.cancel() and stop is not None and not run.done():
            stop.set()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop what runs, and wait until it has ended."""
        for run in list(self._stops):
            self.stop(run)
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._free_ended()

    def _free_ended(self) -> None:
        for run in [run for run in self._stops if run.done()]:
            self._stops.pop(run).close()


class OfExecutor:
    """An executor of a caller's, who also ends it. What it has begun cannot be stopped, and goes on."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, task: Task) -> Future[Evidence]:
        """Hand it to the executor."""
        return self._executor.submit(run_check, task)

    def stop(self, run: Future[Evidence]) -> None:
        """Have it never begin, if it has not."""
        run.cancel()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Leave the executor as it is."""


# Runs of which several go on at once, and that are told of in the order in which they were begun.

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_order(
    asked: Iterable[Asked],
    begin: Callable[[Asked, Collection[Asked]], Future[Found]],
    workers: Workers,
    *,
    jobs: int,
    waiting: int,
) -> Generator[tuple[Asked, Found], None, None]:
    """Begin a run for each thing that is ``asked``, up to ``jobs`` at once; yields what they found, in this order.

    ``begin`` gets a thing, and those whose runs go on. At most ``waiting`` runs for each job may have ended before one
    that was begun earlier. With one job the next run does not begin before the one that was yielded has been dealt
    with. Closing the generator stops what still runs. Raises what a run raises.
    """
    left = iter(asked)
    begun: deque[tuple[Asked, Future[Found]]] = deque()
    try:
        while True:
            running = {run: thing for thing, run in begun if not run.done()}
            room = min(jobs - len(running), waiting * jobs - len(begun))
            for thing in islice(left, max(0, room)):
                run = begin(thing, list(running.values()))
                running[run] = thing
                begun.append((thing, run))
            if not begun:
                return
            if running and not begun[0][1].done():
                workers.wait(running, None)
            if begun[0][1].done():
                thing, run = begun.popleft()
                yield thing, run.result()
    finally:
        for _, run in begun:
            workers.stop(run)


# A command that is run again and again, by whoever runs checks: here or on other machines, several at once.

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


# Runs that are begun before anybody asks for them, where workers would have nothing to do meanwhile.


class RunsAhead(Generic[Asked, Found]):
    """Runs of ``workers``, which ``begin`` begins. Who asks gets the oldest run that nobody has asked for.

    What is expected is only begun sooner: what is asked for, and in which order, is up to who asks. Things with the
    same ``key`` have the same runs. At most ``most`` are begun ahead and go on; None for any number.
    """

    def __init__(
        self,
        begin: Callable[[Asked], Future[Found]],
        key: Callable[[Asked], Hashable],
        workers: Workers,
        most: int | None = None,
    ) -> None:
        self._begin = begin
        self._key = key
        self._workers = workers
        self._most = most
        self._begun: dict[Hashable, deque[tuple[Asked, Future[Found]]]] = {}

    def expect(self, asked: Asked, times: int = 1) -> None:
        """Say that a thing will be asked for so many times: as many runs of it begin as have room."""
        begun = self._begun.setdefault(self._key(asked), deque())
        while len(begun) < times and (self._most is None or self._running < self._most):
            begun.append((asked, self._begin(asked)))

    def found(self, asked: Asked) -> tuple[Asked, Found]:
        """What a run of a thing has found, and that thing as it was when the run began. Raises what the run raises."""
        begun = self._begun.get(self._key(asked))
        thing, run = begun.popleft() if begun else (asked, self._begin(asked))
        while not run.done():
            self._workers.wait([run], None)
        return thing, run.result()

    def forget(self, asked: Asked) -> None:
        """Stop the runs of a thing that nobody will ask for."""
        self._stop(self._key(asked))

    def forget_all(self, but: Iterable[Asked] = ()) -> None:
        """Stop the runs of all things, ``but`` these."""
        for key in self._begun.keys() - {self._key(asked) for asked in but}:
            self._stop(key)

    @property
    def _running(self) -> int:
        return sum(not run.done() for begun in self._begun.values() for _, run in begun)

    def _stop(self, key: Hashable) -> None:
        for _, run in self._begun.pop(key, ()):
            self._workers.stop(run)
