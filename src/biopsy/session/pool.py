"""Who runs checks, threads of our own or whoever a caller gives; the pool that runs several at once, each on a model in
a place of its own; and runs in a row that are begun ahead, or repeated.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
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

    A check that cannot be stopped is waited for at the end. An ``executor`` of a caller's takes the place of our
    threads: what it has begun cannot be stopped, and goes on, and who gave it ends it.
    """

    def __init__(self, jobs: int, executor: Executor | None = None) -> None:
        self._is_ours = executor is None
        # Some may still be ending while others begin.
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
        if self._is_ours:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._free_ended()

    def _free_ended(self) -> None:
        for run in [run for run in self._stops if run.done()]:
            self._stops.pop(run).close()


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
        while len(begun) < times:
            running = sum(not run.done() for runs in self._begun.values() for _, run in runs)
            if self._most is not None and running >= self._most:
                return
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
        for _, run in self._begun.pop(self._key(asked), ()):
            self._workers.stop(run)

    def forget_all(self, but: Iterable[Asked] = ()) -> None:
        """Stop the runs of all things, ``but`` these."""
        kept = {self._key(asked) for asked in but}
        for key, begun in list(self._begun.items()):
            if key not in kept:
                del self._begun[key]
                for _, run in begun:
                    self._workers.stop(run)


_MOST_UNHEARD = 4
"""Answers that are kept although nobody has asked for them yet, for each check that may run at once."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many checks run at once, and who runs them: ``executor``, or threads of our own if it is None."""

    jobs: int = 1
    executor: Executor | Workers | None = None


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A run that is about to begin: its number, its ``check``, and the ``path`` where its model will stand.

    ``place`` is the number of its place, and ``files`` has what stands there for each file that the user knows by name;
    the words of the check name those. ``iteration`` is the number that the check may read.
    """

    number: int
    trial: Trial
    check: Check
    path: Path
    place: int
    files: Mapping[Path, Path]
    iteration: int


@dataclass(frozen=True)
class PendingRun:
    """A run of a check that has begun."""

    slot: Slot
    future: Future[Evidence]

    @property
    def trial(self) -> Trial:
        """The model it looks at."""
        return self.slot.trial


class Pool:
    """Runs a check on models, at most ``jobs`` at once. It neither judges nor remembers what the check says.

    ``pending`` are the runs that somebody may still ask for, whether they have ended or not.

    ``candidate`` is where the user knows candidates to stand, and ``read`` are further files that a check reads; runs
    at the same time get places beside these. ``keep_last``: the last candidate is left there. A run that is no longer
    wanted is abandoned: its check is asked to stop, and whoever needs its place waits for nothing. ``is_shared``: an
    executor of the user's runs checks.
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
        self.check = check
        self.jobs = parallelism.jobs
        self.pending: list[PendingRun] = []
        self._listener = listener
        self._keep_last = keep_last
        self._ending: list[PendingRun] = []
        self._number = 0
        self._places = Places(candidate, read)
        self._checks_before: list[Check] = []
        self.is_shared = parallelism.executor is not None
        executor = parallelism.executor
        if executor is None and self.jobs == 1 and not check.stoppable:
            executor = Inline()
        self._workers: Workers = (
            Threads(self.jobs, executor) if executor is None or isinstance(executor, Executor) else executor
        )
        self._in_flight = InFlight(self._workers, self.jobs, listener)

    @property
    def running(self) -> list[PendingRun]:
        """Pending runs that have not ended."""
        return [run for run in self.pending if not run.future.done()]

    @property
    def kept(self) -> list[PendingRun]:
        """Pending runs beside the search: they are nobody's to abandon, or to take the answer of."""
        return [run for run in self.pending if run.trial.is_kept]

    def runs_of(self, trial: Trial) -> list[PendingRun]:
        """Pending runs that answer this trial, the oldest first."""
        return [run for run in self.pending if not run.trial.is_kept and run.trial.asks_the_same(trial)]

    def slot(self, trial: Trial, iteration: int = 0) -> Slot:
        """The number and place of the next run."""
        self._ending = [run for run in self._ending if not run.future.done()]
        check = trial.check or self.check
        place = self._places.free({run.slot.place for run in (*self.pending, *self._ending)})
        files = self._places.files(place, check.names_file)
        own = {file: path for file, path in files.items() if path != file}
        number, self._number = self._number, self._number + 1
        return Slot(
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
        slot: Slot,
        original: tuple[Mismatch, ...] = (),
        *,
        here: bool = False,
        known: Evidence | None = None,
    ) -> PendingRun:
        """Begin a run. ``original``: how the original's outputs differ, for a candidate that must be comparable.

        ``here``: in this thread, for a check that nobody can stop. A run whose evidence is ``known`` has ended already.
        """
        trial, check = slot.trial, slot.check
        of_a_candidate = trial.check is None or trial.stage.is_remembered
        task = Task(check, slot.path, None if trial.place else trial.parts, original if of_a_candidate else ())
        future: Future[Evidence] = Future()
        if known is not None:
            future.set_result(known)
        else:
            future = Inline().submit(run_check, task) if here else self._workers.begin(task)
        run = PendingRun(slot, future)
        self.pending.append(run)
        return run

    def wait(
        self, run: PendingRun, seconds: float | None, meanwhile: Callable[[], object] | None = None
    ) -> Evidence | None:
        """What a run leaves; None if it has not ended after so many seconds. Raises what the check raises.

        ``meanwhile`` is called whenever another run has ended before.
        """
        until = None if seconds is None else monotonic() + seconds
        while not run.future.done():
            others = [other.future for other in self.running] if meanwhile is not None else []
            left = None if until is None else max(0.0, until - monotonic())
            self._in_flight.tell(self.pending, self._ending)
            self._workers.wait({run.future, *others}, self._in_flight.patience(left))
            if left == 0 and not run.future.done():
                return None
            if meanwhile is not None and not run.future.done() and any(other.done() for other in others):
                meanwhile()
        if run in self.pending:
            self.pending.remove(run)
        return run.future.result()

    def make_room(self, kept: Sequence[PendingRun]) -> None:
        """Abandon the newest runs, but for those ``kept``, until one more may begin."""
        running = self.running
        others = [run for run in running if run not in kept and not run.trial.is_kept]
        excess = max(0, len(running) + 1 - self.jobs)
        self.abandon(others[len(others) - excess :])

    def abandon(self, runs: Iterable[PendingRun]) -> None:
        """Stop runs that nobody waits for any more."""
        for run in list(runs):
            self.pending.remove(run)
            self._ending.append(run)
            self._workers.stop(run.future)
            self._in_flight.cancelled += not run.future.done() or run.future.cancelled()
            self._listener(events.Abandoned(run.slot.number))

    def abandon_all(self, but: Sequence[Trial] = ()) -> None:
        """Stop every pending run, ``but`` those of these models."""
        kept = {trial.digest for trial in but}
        self.abandon(run for run in self.pending if run.trial.digest not in kept and not run.trial.is_kept)

    def abandon_running(self, but: Sequence[Trial]) -> None:
        """The same, but of the answers that are there those that came first go, and only if there are many."""
        kept = {trial.digest for trial in but}
        others = [run for run in self.pending if run.trial.digest not in kept and not run.trial.is_kept]
        ended = [run for run in others if run.future.done()]
        excess = max(0, len(ended) - _MOST_UNHEARD * self.jobs)
        self.abandon([*(run for run in others if not run.future.done()), *ended[:excess]])

    def use(self, check: Check) -> None:
        """Run another check from now on, such as the same without what was kept warm; the old one ends at the end."""
        self.abandon_all()
        self._checks_before.append(self.check)
        self.check = check

    def close(self) -> None:
        """End everything, and leave no candidate behind."""
        self.abandon(self.pending)
        self._workers.close()
        self._ending.clear()
        self._in_flight.tell([], [])
        for check in (self.check, *self._checks_before):
            check.close()
        self._places.clear(keep_last=self._keep_last)


# Where the files of runs stand that go on at the same time: under the user's own names, or numbered beside them.


def numbered(path: Path, number: int) -> Path:
    """The file that stands for ``path`` in a place; place 0 is where the user knows it to be."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


class Places:
    """Numbers of places, each with files that a run has for itself until it has ended.

    They stand beside the ``candidate``, and beside further files that a check reads, where the user knows these to be.
    """

    def __init__(self, candidate: Path, read: Sequence[Path] = ()) -> None:
        self._candidate = candidate
        self._read = read
        self._files = {candidate, *read}
        self._made: set[Path] = set()

    def free(self, taken: Collection[int]) -> int:
        """The lowest number that is not ``taken``, and where nothing stands that is somebody else's."""

        def is_free(number: int) -> bool:
            paths = [numbered(path, number) for path in self._files] if number else []
            is_others = (path in self._files or (path not in self._made and os.path.lexists(path)) for path in paths)
            return number not in taken and not any(is_others)

        return next(filter(is_free, count()))

    def candidate(self, number: int) -> Path:
        """Where a candidate will stand."""
        path = numbered(self._candidate, number)
        self._made.add(path)
        return path

    def files(self, number: int, is_told: Callable[[Path], bool]) -> dict[Path, Path]:
        """What will stand there for each file that is read; who is not told looks where the user knows it to be."""
        files = {file: numbered(file, number) if is_told(file) else file for file in self._read}
        self._made.update(path for file, path in files.items() if path != file)
        return files

    def clear(self, *, keep_last: bool = False) -> None:
        """Remove what we made, but for the last candidate if that is kept: it is the user's file, as those read are."""
        for path in self._made - ({self._candidate} if keep_last else set()):
            with contextlib.suppress(OSError):  # what went wrong before is told, not this
                clear(path, whole=True)
        for path in self._made:
            cleanup.keep(path)


# What is told of the checks that are going on at once, here or on other machines.

_LOOK = 0.5
"""Seconds between two looks at what other machines do, while a search waits for them."""


class InFlight:
    """Tells ``listener`` of the checks of some workers, whenever they have changed since it was last told.

    Nothing is told where one check runs after the other on this machine.
    """

    def __init__(self, workers: Workers, jobs: int, listener: events.Listener) -> None:
        self.cancelled = 0
        self._machines = workers if isinstance(workers, OtherMachines) else None
        self._is_told = jobs > 1 or self._machines is not None
        self._listener = listener
        self._told = events.ChecksInFlight(running=0, waiting=0, ending=0, cancelled=0)
        if self._machines is not None:
            self._machines.expect(jobs)

    def tell(self, pending: Iterable[PendingRun], cancelled: Iterable[PendingRun]) -> None:
        """Tell of the checks whose answers are wanted, and of those that were cancelled, as far as they go on."""
        if not self._is_told:
            return
        wanted = sum(not run.future.done() for run in pending)
        use = None if self._machines is None else self._machines.use
        running = wanted if use is None else min(wanted, use.running)
        now = events.ChecksInFlight(
            running=running,
            waiting=wanted - running,
            ending=sum(not run.future.done() for run in cancelled),
            cancelled=self.cancelled,
            machines=None if use is None else use.machines,
        )
        if now != self._told:
            self._told = now
            self._listener(now)

    def patience(self, seconds: float | None) -> float | None:
        """How long to wait before it is told again, if so many seconds are left; None for as long as it takes."""
        if self._machines is None:
            return seconds
        return _LOOK if seconds is None else min(_LOOK, seconds)
