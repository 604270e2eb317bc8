"""The pool that runs checks: several at once, each on a model that stands where no other run looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass
from pathlib import Path

from biopsy import events
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import Inline, Task, run_check
from biopsy.comparison.mismatch import Mismatch
from biopsy.isolation.watch import Stop
from biopsy.session.places import Places
from biopsy.session.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many checks run at once, and who runs them: ``executor``, or threads of our own if it is None."""

    jobs: int = 1
    executor: Executor | None = None


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
    stop: Stop | None = None

    @property
    def trial(self) -> Trial:
        """The model it looks at."""
        return self.slot.trial

    def free(self) -> None:
        """Release what the run held, once it has ended."""
        if self.stop is not None:
            self.stop.close()


class Pool:
    """Runs a check on models, at most ``jobs`` at once. It neither judges nor remembers what the check says.

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
        self._executor = parallelism.executor or self._own_executor()

    @property
    def kept(self) -> list[PendingRun]:
        """Pending runs beside the search: they are nobody's to abandon, or to take the answer of."""
        return [run for run in self.pending if run.trial.is_kept]

    def runs_of(self, trial: Trial) -> list[PendingRun]:
        """Pending runs that answer this trial, the oldest first."""
        return [run for run in self.pending if not run.trial.is_kept and run.trial.asks_the_same(trial)]

    def slot(self, trial: Trial, iteration: int = 0) -> Slot:
        """The number and place of the next run."""
        self._free_ended()
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
        trial = slot.trial
        check = slot.check
        of_a_candidate = trial.check is None or trial.stage.is_remembered
        task = Task(check, slot.path, None if trial.place else trial.parts, original if of_a_candidate else ())
        if self.is_shared or not check.stoppable:
            executor = Inline() if here else self._executor
            return self._begun(PendingRun(slot, executor.submit(run_check, task)))
        stop = Stop()
        return self._begun(PendingRun(slot, self._executor.submit(run_check, task, stop), stop))

    def answered(self, slot: Slot, evidence: Evidence) -> PendingRun:
        """A run that has ended before it began, since its evidence is known."""
        future: Future[Evidence] = Future()
        future.set_result(evidence)
        return self._begun(PendingRun(slot, future))

    def wait(self, run: PendingRun, seconds: float | None) -> Evidence | None:
        """What a run leaves; None if it has not ended after so many seconds. Raises what the check raises."""
        try:
            return run.future.result(seconds)
        except NotYetError:
            # It may have ended just now; or the error is the check's own, which is raised again here.
            return run.future.result() if run.future.done() else None
        finally:
            if run in self.pending and run.future.done():
                self.pending.remove(run)
                run.free()

    def make_room(self, kept: Sequence[PendingRun]) -> None:
        """Abandon the newest runs, but for those ``kept``, until one more may begin."""
        others = [run for run in self.pending if run not in kept and not run.trial.is_kept]
        excess = max(0, len(self.pending) + 1 - self.jobs)
        self.abandon(others[len(others) - excess :])

    def abandon(self, runs: Iterable[PendingRun]) -> None:
        """Stop runs that nobody waits for any more."""
        for run in list(runs):
            self.pending.remove(run)
            self._ending.append(run)
            if not run.future.cancel() and run.stop is not None and not run.future.done():
                run.stop.set()
            self._listener(events.Abandoned(run.slot.number))

    def abandon_all(self, but: Sequence[Trial] = ()) -> None:
        """Stop every pending run, ``but`` those of these models."""
        kept = {trial.digest for trial in but}
        self.abandon(run for run in self.pending if run.trial.digest not in kept and not run.trial.is_kept)

    def use(self, check: Check) -> None:
        """Run another check from now on, such as the same without what was kept warm; the old one ends at the end."""
        self.abandon_all()
        self._checks_before.append(self.check)
        self.check = check

    def close(self) -> None:
        """End everything, and leave no candidate behind."""
        self.abandon(self.pending)
        if not self.is_shared:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._free_ended(wait=not self.is_shared)
        for check in (self.check, *self._checks_before):
            check.close()
        self._places.clear(keep_last=self._keep_last)

    def _own_executor(self) -> Executor:
        if self.jobs == 1 and not self.check.stoppable:
            return Inline()
        return ThreadPoolExecutor(2 * self.jobs, thread_name_prefix="biopsy-check")  # some may still be ending

    def _begun(self, run: PendingRun) -> PendingRun:
        self.pending.append(run)
        return run

    def _free_ended(self, *, wait: bool = False) -> None:
        """Release what belongs to runs that were abandoned and have ended."""
        for run in list(self._ending):
            if wait or run.future.done():
                self._ending.remove(run)
                run.free()
