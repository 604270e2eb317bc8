"""The pool, which runs several checks at once, each on a model in a place of its own; the workers that run them; and
runs that are begun ahead or repeated, with their results in order.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from biopsy import events
from biopsy.checks.judge import RepeatedRun, Rules
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import NO_CANDIDATE, Inline, Task, clear, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.processes import cleanup
from biopsy.processes.watch import Stop
from biopsy.session.machines import OtherMachines
from biopsy.session.trial import Trial, judge_any_failure


@runtime_checkable
class Workers(Protocol):
    """Runs checks, several at once, here or on other machines.

    All methods are called from one thread. What a run raises is in its future. A lost machine says nothing about a
    model: workers on machines run the check again elsewhere, and raise CheckError if that fails too.
    """

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run."""

    def stop(self, run: Future[Any]) -> None:
        """Stop a run, with all that it has started, as soon as possible. Its future is done once it has ended."""

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        """Return once one of these runs has ended, or after this many ``seconds``."""

    def close(self) -> None:
        """Stop all runs and wait for their end."""


class Threads:
    """Threads of this process, enough for ``jobs`` checks at once.

    A check that cannot be stopped is waited for at the end. An ``executor`` of a caller's replaces our threads: what it
    has begun cannot be stopped, and the caller closes it.
    """

    def __init__(self, jobs: int, executor: Executor | None = None) -> None:
        self._is_ours = executor is None
        # Some runs may still be ending while others begin.
        self._executor = executor or ThreadPoolExecutor(2 * jobs, "biopsy-check")
        self._stops: dict[Future[Evidence], Stop] = {}

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run."""
        self._free_ended()
        if not (self._is_ours and task.check is not None and task.check.stoppable):
            return self._executor.submit(run_check, task)
        stop = Stop()
        run = self._executor.submit(run_check, task, stop)
        self._stops[run] = stop
        return run

    def stop(self, run: Future[Evidence]) -> None:
        """Keep a run from beginning, or stop its check."""
        stop = self._stops.get(run)
        if not run.cancel() and stop is not None and not run.done():
            stop.set()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop all runs and wait for their end."""
        for run in list(self._stops):
            self.stop(run)
        if self._is_ours:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._free_ended()

    def _free_ended(self) -> None:
        for run in [run for run in self._stops if run.done()]:
            self._stops.pop(run).close()


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    items: Iterable[Item],
    begin: Callable[[Item, Collection[Item]], Future[Result]],
    workers: Workers,
    *,
    jobs: int,
    waiting: int,
) -> Generator[tuple[Item, Result], None, None]:
    """Begin a run for each item, up to ``jobs`` at once; yields items with results, in the order of the items.

    ``begin`` gets an item, and those whose runs go on. At most ``waiting`` runs per job may wait for one that was begun
    earlier. With one job, the next run begins only after the yielded result has been dealt with. Closing the generator
    stops all runs. Raises what a run raises.
    """
    left = iter(items)
    begun: deque[tuple[Item, Future[Result]]] = deque()
    try:
        while True:
            running = {run: item for item, run in begun if not run.done()}
            room = min(jobs - len(running), waiting * jobs - len(begun))
            for item in islice(left, max(0, room)):
                run = begin(item, list(running.values()))
                running[run] = item
                begun.append((item, run))
            if not begun:
                return
            if running and not begun[0][1].done():
                workers.wait(running, None)
            if begun[0][1].done():
                item, run = begun.popleft()
                yield item, run.result()
    finally:
        for _, run in begun:
            workers.stop(run)


_MOST_WAITING = 16
"""Runs per job that may have been begun after one that still goes on."""


def repeated(
    begin: Callable[[int, Collection[int]], Check],
    rules: Rules,
    times: int | None,
    jobs: int,
    first: int = 0,
    workers: Workers | None = None,
) -> Generator[RepeatedRun, None, None]:
    """Run a check ``times`` times, or endlessly if None, up to ``jobs`` at once; yields the runs in order of starting.

    In order of ending, runs that fail fast would be counted before those that pass slowly, which biases the rate. So
    the counts at any moment are those that one job would give. The first ``first`` runs are known and left out.
    ``begin`` is called just before a run begins, with its number and those of the runs that go on; it returns the check
    to run. With one job, the next run begins only after the yielded one has been dealt with, so its files may be moved.
    ``workers`` run the checks, threads of our own if None, and are closed at the end. Closing the generator or an
    exception stops all runs. Raises CheckError if the check cannot be run.
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


class RunsAhead(Generic[Item, Result]):
    """Runs of ``workers`` that are begun before they are needed, so that the workers stay busy.

    ``begin`` begins a run of an item; items with the same ``key`` share their runs. Which results are asked for, in
    which order, does not depend on what is expected. At most ``most`` runs go on ahead; None for no limit.
    """

    def __init__(
        self,
        begin: Callable[[Item], Future[Result]],
        key: Callable[[Item], Hashable],
        workers: Workers,
        most: int | None = None,
    ) -> None:
        self._begin = begin
        self._key = key
        self._workers = workers
        self._most = most
        self._begun: dict[Hashable, deque[tuple[Item, Future[Result]]]] = {}

    def expect(self, item: Item, times: int = 1) -> None:
        """Begin runs of an item that will be asked for ``times`` times, as far as there is room."""
        begun = self._begun.setdefault(self._key(item), deque())
        while len(begun) < times:
            running = sum(not run.done() for runs in self._begun.values() for _, run in runs)
            if self._most is not None and running >= self._most:
                return
            begun.append((item, self._begin(item)))

    def result(self, item: Item) -> tuple[Item, Result]:
        """Wait for the oldest unused run of an item; returns the item as it was then, and the result.

        Raises what the run raises.
        """
        begun = self._begun.get(self._key(item))
        begun_item, run = begun.popleft() if begun else (item, self._begin(item))
        while not run.done():
            self._workers.wait([run], None)
        return begun_item, run.result()

    def forget(self, item: Item) -> None:
        """Stop the runs of an item that is not expected any more."""
        for _, run in self._begun.pop(self._key(item), ()):
            self._workers.stop(run)

    def forget_all(self, but: Iterable[Item] = ()) -> None:
        """Stop the runs of all items, ``but`` these."""
        kept = {self._key(item) for item in but}
        for key, begun in list(self._begun.items()):
            if key not in kept:
                del self._begun[key]
                for _, run in begun:
                    self._workers.stop(run)


_MOST_UNUSED = 4
"""Ended runs per job that are kept although nobody has asked for them yet."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many checks run at once, and what runs them: ``executor``, or threads of our own if it is None."""

    jobs: int = 1
    executor: Executor | Workers | None = None


@dataclass(eq=False, kw_only=True)
class PendingRun:
    """A run of a check: its number, its ``check``, and the ``path`` of its model.

    ``place`` is the number of its place, and ``files`` maps files that the user named to those in this place, which the
    words of the check name. ``iteration`` is the number that the check may read. ``future`` is the run once it begins.
    """

    number: int
    trial: Trial
    check: Check
    path: Path
    place: int
    files: Mapping[Path, Path]
    iteration: int
    future: Future[Evidence] = field(default_factory=Future)


class Pool:
    """Runs a check on models, at most ``jobs`` at once. It neither judges nor remembers the answers.

    ``pending`` are the runs whose answers may still be needed, ended or not.

    ``candidate`` is the usual path of candidates, and ``read`` are further files that a check reads; simultaneous runs
    get places beside these. ``keep_last``: leave the last candidate. A run that is not needed any more is abandoned:
    its check is stopped, without waiting for that. ``is_shared``: the checks run in an executor of the user's or on
    other machines.
    """

    def __init__(
        self,
        check: Check,
        candidate: Path,
        parallelism: Parallelism,
        listener: events.Listener,
        *,
        keep_last: bool,
        read: Sequence[Path] = (),
    ) -> None:
        self._checks = [check]  # the newest is in use
        self.jobs = parallelism.jobs
        self.pending: list[PendingRun] = []
        self._listener = listener
        self._keep_last = keep_last
        self._ending: list[PendingRun] = []
        self._number = 0
        self._places = Places(candidate, read)
        self.is_shared = parallelism.executor is not None
        executor = parallelism.executor
        if executor is None and self.jobs == 1 and not check.stoppable:
            executor = Inline()
        self._workers: Workers = (
            Threads(self.jobs, executor) if executor is None or isinstance(executor, Executor) else executor
        )
        self._cancelled = 0
        self._in_flight = events.ChecksInFlight(running=0, waiting=0, ending=0, cancelled=0)  # as reported last
        if isinstance(self._workers, OtherMachines):
            self._workers.expect(self.jobs)

    @property
    def check(self) -> Check:
        """The check in use."""
        return self._checks[-1]

    @property
    def running(self) -> list[PendingRun]:
        """Pending runs that have not ended."""
        return [run for run in self.pending if not run.future.done()]

    @property
    def kept(self) -> list[PendingRun]:
        """Pending runs asked beside the search, which may neither abandon nor use them."""
        return [run for run in self.pending if run.trial.is_kept]

    def runs_of(self, trial: Trial) -> list[PendingRun]:
        """Pending runs that answer this trial, the oldest first."""
        return [run for run in self.pending if not run.trial.is_kept and run.trial.asks_the_same(trial)]

    def new_run(self, trial: Trial, iteration: int = 0) -> PendingRun:
        """The next run, not begun yet, with a number and a place."""
        self._ending = [run for run in self._ending if not run.future.done()]
        check = trial.check or self.check
        place = self._places.free({run.place for run in (*self.pending, *self._ending)})
        files = self._places.files(place, check.names_file)
        own = {file: path for file, path in files.items() if path != file}
        number, self._number = self._number, self._number + 1
        return PendingRun(
            number=number,
            trial=trial,
            check=check.with_files(own) if own else check,
            path=trial.place or self._places.candidate(place),
            place=place,
            files=files,
            iteration=iteration,
        )

    def start(
        self,
        run: PendingRun,
        original: tuple[Mismatch, ...] = (),
        *,
        here: bool = False,
        known: Evidence | None = None,
    ) -> PendingRun:
        """Begin a run and return it. ``original``: how the original's outputs differ, for a comparable candidate.

        ``here``: run it in this thread, for a check that cannot be stopped. A run whose evidence is ``known`` ends at
        once.
        """
        trial = run.trial
        is_candidate = trial.check is None or trial.stage.is_remembered
        task = Task(run.check, run.path, None if trial.place else trial.parts, original if is_candidate else ())
        if known is not None:
            run.future.set_result(known)
        else:
            run.future = Inline().submit(run_check, task) if here else self._workers.begin(task)
        self.pending.append(run)
        return run

    def wait(
        self, run: PendingRun, seconds: float | None, meanwhile: Callable[[], object] | None = None
    ) -> Evidence | None:
        """Wait for the evidence of a run; None if it has not ended after ``seconds``. Raises what the check raises.

        ``meanwhile`` is called whenever another run has ended before.
        """
        until = None if seconds is None else monotonic() + seconds
        while not run.future.done():
            others = [other.future for other in self.running] if meanwhile is not None else []
            left = None if until is None else max(0.0, until - monotonic())
            self._report_in_flight()
            patience = left
            if isinstance(self._workers, OtherMachines):
                patience = _REPORT_INTERVAL if left is None else min(_REPORT_INTERVAL, left)
            self._workers.wait({run.future, *others}, patience)
            if left == 0 and not run.future.done():
                return None
            if meanwhile is not None and not run.future.done() and any(other.done() for other in others):
                meanwhile()
        if run in self.pending:
            self.pending.remove(run)
        return run.future.result()

    def make_room(self, kept: Sequence[PendingRun]) -> None:
        """Abandon the newest runs, except those ``kept``, until one more may begin."""
        running = self.running
        others = [run for run in running if run not in kept and not run.trial.is_kept]
        excess = max(0, len(running) + 1 - self.jobs)
        self.abandon(others[len(others) - excess :])

    def abandon(self, runs: Iterable[PendingRun]) -> None:
        """Stop runs that are not needed any more."""
        for run in list(runs):
            self.pending.remove(run)
            self._ending.append(run)
            self._workers.stop(run.future)
            self._cancelled += not run.future.done() or run.future.cancelled()
            self._listener(events.Abandoned(run.number))

    def abandon_all(self, but: Sequence[Trial] = ()) -> None:
        """Abandon every pending run, ``but`` those of these models."""
        kept = {trial.digest for trial in but}
        self.abandon(run for run in self.pending if run.trial.digest not in kept and not run.trial.is_kept)

    def abandon_running(self, but: Sequence[Trial]) -> None:
        """Abandon every run that goes on, ``but`` those of these models; of ended ones, the oldest if many."""
        kept = {trial.digest for trial in but}
        others = [run for run in self.pending if run.trial.digest not in kept and not run.trial.is_kept]
        ended = [run for run in others if run.future.done()]
        excess = max(0, len(ended) - _MOST_UNUSED * self.jobs)
        self.abandon([*(run for run in others if not run.future.done()), *ended[:excess]])

    def use(self, check: Check) -> None:
        """Use another check from now on, such as a cold one; the old one is closed at the end."""
        self.abandon_all()
        self._checks.append(check)

    def close(self) -> None:
        """Stop everything, and leave no candidate behind."""
        self.abandon(self.pending)
        self._workers.close()
        self._ending.clear()
        self._report_in_flight()
        for check in reversed(self._checks):
            check.close()
        self._places.clear(keep_last=self._keep_last)

    def _report_in_flight(self) -> None:
        """Report the checks in flight if they have changed; never if they run one by one on this machine."""
        machines = self._workers if isinstance(self._workers, OtherMachines) else None
        if self.jobs == 1 and machines is None:
            return
        wanted = len(self.running)
        running = wanted if machines is None else min(wanted, machines.running)
        now = events.ChecksInFlight(
            running=running,
            waiting=wanted - running,
            ending=sum(not run.future.done() for run in self._ending),
            cancelled=self._cancelled,
            machines=None if machines is None else machines.borrowed,
        )
        if now != self._in_flight:
            self._in_flight = now
            self._listener(now)


def numbered(path: Path, number: int) -> Path:
    """The file that replaces ``path`` in a place; place 0 has the user's own names."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


class Places:
    """Numbered places, each with files for one run at a time.

    The files are beside the ``candidate`` and further files that a check ``read``s, under their names with a number.
    """

    def __init__(self, candidate: Path, read: Sequence[Path] = ()) -> None:
        self._candidate = candidate
        self._read = read
        self._files = {candidate, *read}
        self._made: set[Path] = set()

    def free(self, taken: Collection[int]) -> int:
        """The lowest number that is not ``taken`` and whose files do not exist already."""

        def is_free(number: int) -> bool:
            paths = [numbered(path, number) for path in self._files] if number else []
            is_others = (path in self._files or (path not in self._made and os.path.lexists(path)) for path in paths)
            return number not in taken and not any(is_others)

        return next(filter(is_free, count()))

    def candidate(self, number: int) -> Path:
        """The path of a candidate in a place."""
        path = numbered(self._candidate, number)
        self._made.add(path)
        return path

    def files(self, number: int, is_named: Callable[[Path], bool]) -> dict[Path, Path]:
        """The path in a place for each file that is read; the usual path if the check does not name the file."""
        files = {file: numbered(file, number) if is_named(file) else file for file in self._read}
        self._made.update(path for file, path in files.items() if path != file)
        return files

    def clear(self, *, keep_last: bool = False) -> None:
        """Remove the files made here, except the last candidate if ``keep_last``."""
        for path in self._made - ({self._candidate} if keep_last else set()):
            with contextlib.suppress(OSError):  # an earlier error is reported, not this one
                clear(path, whole=True)
        for path in self._made:
            cleanup.keep(path)


_REPORT_INTERVAL = 0.5
"""Seconds between two reports on what other machines do, while a search waits."""
