"""The pool that runs checks: several at once, each on a model in a place of its own, with what is told of them
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from biopsy import events
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import Inline, Task, clear, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.processes import cleanup
from biopsy.session.machines import OtherMachines
from biopsy.session.trial import Trial
from biopsy.session.workers import OfExecutor, Threads, Workers

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
        self._workers: Workers
        if executor is None:
            self._workers = Threads(self.jobs, inline=self.jobs == 1 and not check.stoppable)
        else:
            self._workers = OfExecutor(executor) if isinstance(executor, Executor) else executor
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

    def runs_here(self, trial: Trial) -> bool:
        """Whether a check of a model can run in the thread of who asks: a function, which nobody can stop anyway."""
        return not self.is_shared and not (trial.check or self.check).stoppable

    def start(self, slot: Slot, original: tuple[Mismatch, ...] = (), *, here: bool = False) -> PendingRun:
        """Begin a run. ``original``: how the original's outputs differ, for a candidate that must be comparable.

        ``here``: in this thread, for what ``runs_here``.
        """
        trial, check = slot.trial, slot.check
        of_a_candidate = trial.check is None or trial.stage.is_remembered
        task = Task(check, slot.path, None if trial.place else trial.parts, original if of_a_candidate else ())
        return self._begun(PendingRun(slot, Inline().submit(run_check, task) if here else self._workers.begin(task)))

    def answered(self, slot: Slot, evidence: Evidence) -> PendingRun:
        """A run that has ended before it began, since its evidence is known."""
        future: Future[Evidence] = Future()
        future.set_result(evidence)
        return self._begun(PendingRun(slot, future))

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
            self._tell()
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
        self._tell()
        for check in (self.check, *self._checks_before):
            check.close()
        self._places.clear(keep_last=self._keep_last)

    def _tell(self) -> None:
        ending = sum(not run.future.done() for run in self._ending)
        self._in_flight.tell(len(self.running), ending)

    def _begun(self, run: PendingRun) -> PendingRun:
        self.pending.append(run)
        return run


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
        number = 0
        while number in taken or (number and any(self._is_of_others(numbered(path, number)) for path in self._files)):
            number += 1
        return number

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

    def _is_of_others(self, path: Path) -> bool:
        return path in self._files or (path not in self._made and os.path.lexists(path))


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

    def tell(self, wanted: int, ending: int) -> None:
        """Tell of so many checks whose answers are wanted, and so many that were cancelled and have not ended."""
        if not self._is_told:
            return
        use = None if self._machines is None else self._machines.use
        running = wanted if use is None else min(wanted, use.running)
        now = events.ChecksInFlight(
            running=running,
            waiting=wanted - running,
            ending=ending,
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
