"""Trials: models that are checked, each as often as its answer needs, several at once, and none twice.

Who asks never sees how many run at the same time: an answer depends on the model alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.checks.task import Inline, Task, clear, run_check
from biopsy.comparison.mismatch import Mismatch, why_not
from biopsy.isolation import cleanup
from biopsy.isolation.watch import Stop
from biopsy.session.iteration import IterationFiles

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal
    from biopsy.checks.signature import Signature

PROBES = frozenset({"identity", "values", "final", "confirm", "look", "rounding"})
"""Stages whose models are no candidates: they are no iterations, and no artifacts of theirs are sorted."""

_NOT_REMEMBERED = frozenset({"identity", "final", "look", "rounding"})
"""Stages that ask anew in every process."""

_SAID_ONCE = frozenset({Outcome.INVALID, Outcome.TIMED_OUT})
"""Outcomes that are not asked for again, however flaky the failure is."""


@dataclass(frozen=True)
class Trial:
    """A model to be checked: its bytes, how many nodes it has, and words for the progress line.

    ``place`` is where it stands already; None if it is to be written where candidates stand. ``check`` is another one
    than all others get.
    """

    parts: Sequence[bytes]
    size: int
    stage: str
    description: str
    place: Path | None = None
    check: Check | None = None

    @cached_property
    def digest(self) -> bytes:
        """What tells one model from another."""
        found = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            found.update(part)
        return found.digest()

    def asks_the_same(self, other: Trial) -> bool:
        """Whether a run of this trial answers the other one."""
        return self.digest == other.digest and self.check is other.check


@dataclass(frozen=True)
class Parallelism:
    """How many checks run at once, and who runs them: ``executor``, or threads of our own if it is None."""

    jobs: int = 1
    executor: Executor | None = None


@dataclass(frozen=True)
class Budget:
    """What a search may cost: so many runs of the check that it had to wait for, so many seconds; None: no limit."""

    checks: int | None = None
    seconds: float | None = None


class BudgetSpentError(Exception):
    """The search must end with the best result so far; the text says which limit was reached."""


@dataclass
class OtherFailure:
    """A failure that is not the original's: how often it was met, and where one model that shows it was kept."""

    times: int = 0
    model: Path | None = None


@dataclass
class Tally:
    """What a search has cost and met.

    ``cannot_say`` counts models of which a check could not say anything, by the reason. ``remembered`` counts answers
    that the journal gave.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    other_failures: dict[str, OtherFailure] = field(default_factory=dict)
    cannot_say: Counter[str] = field(default_factory=Counter)
    remembered: int = 0

    @property
    def checks(self) -> int:
        """Runs of checks that were waited for."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class PendingRun:
    """A run of a check that has begun."""

    number: int
    trial: Trial
    path: Path
    future: Future[Evidence]
    stop: Stop | None


class Trials:
    """Runs a check on models, remembers what it said, and tells the listener.

    ``repetitions`` is how many runs that do not reproduce make a model pass: one, unless the failure is flaky.
    ``limited``: the budget counts, as it does while something is searched. ``original``: how the original's outputs
    differ, where a candidate's must be comparable. ``model``: the original's file, which is still there when a person
    repeats a check.
    """

    def __init__(
        self,
        check: Check,
        rules: Rules,
        candidate: Path,
        listener: events.Listener,
        files: IterationFiles,
        parallelism: Parallelism = Parallelism(),
        budget: Budget = Budget(),
        keep_other: Callable[[Trial, int], Path | None] = lambda trial, number: None,
    ) -> None:
        self.check = check
        self.rules = rules
        self.candidate = candidate
        self.listener = listener
        self.files = files
        self.jobs = parallelism.jobs
        self.tally = Tally()
        self.reference: Signature | None = None
        self.original: tuple[Mismatch, ...] = ()
        self.model: Path | None = None
        self.repetitions = 1
        self.limited = False
        self.journal: Journal | None = None
        self.left = 0
        self._keep_other = keep_other
        self._budget = budget
        self._started = time.monotonic()
        self._runs: dict[bytes, list[Judged]] = {}
        self._pending: list[PendingRun] = []
        self._ending: list[PendingRun] = []
        self._number = 0
        self._iteration = 0
        self._asked = 0
        self._places: set[Path] = set()
        self._noted: set[bytes] = set()
        self._answered: list[bytes] = []
        self._used: list[Check] = []
        self._told_unjudged = False
        self._given = parallelism.executor
        self._executor = parallelism.executor or self._own_executor()

    def judge(self, trial: Trial) -> Judged:
        """The outcome of a model, from memory as far as it was checked before.

        Raises CheckError if the check could not be run, BudgetSpentError if it may not be run any more.
        """
        runs = self._runs_of(trial.digest)
        while (judged := concluded(runs, self.repetitions)) is None:
            runs.append(self._run(trial, self.repetitions - len(runs)))
            self._remember(trial, runs[-1])
            self._answered.append(trial.digest)
        self._abandon(pending for pending in self._pending if pending.trial.digest == trial.digest)
        self._note_other_failure(trial, judged)
        return judged

    def again(self, trial: Trial, wanted: int = 1) -> Judged:
        """One more run on a model, whatever is remembered of it; ``wanted`` says how many more will be asked for."""
        judged = self._run(trial, wanted)
        if trial.stage not in _NOT_REMEMBERED:
            self._runs_of(trial.digest).append(judged)
            self._remember(trial, judged)
            self._answered.append(trial.digest)
        return judged

    def is_known(self, trial: Trial) -> bool:
        """Whether a model would be judged without running the check."""
        return concluded(self._runs_of(trial.digest), self.repetitions) is not None

    def was_asked(self, trial: Trial) -> bool:
        """Whether the check was asked about a model by this process, rather than by one that left a journal."""
        return trial.digest in self._answered

    def take_back(self) -> bytes | None:
        """Forget the newest answer: the person who gave it takes it back. Returns which, None if there is none."""
        if not self._answered:
            return None
        digest = self._answered.pop()
        for judged in self._runs.pop(digest, ()):
            if self.tally.outcomes[judged.outcome]:
                self.tally.outcomes[judged.outcome] -= 1
                self._iteration -= 1
        if self.journal is not None:
            self.journal.forget(digest)
        return digest

    def ahead(self, trials: Iterator[Trial]) -> None:
        """Begin checks of models that may be asked about soon, as many as may run at once."""
        while len(self._pending) < self.jobs and not self._nearly_spent():
            trial = next(trials, None)
            if trial is None:
                return
            if not self.is_known(trial) and all(pending.trial.digest != trial.digest for pending in self._pending):
                self._pending.append(self._submit(trial))

    def abandon_all(self, but: Sequence[Trial] = ()) -> None:
        """End what was begun and nobody asked about, ``but`` for these."""
        kept = {trial.digest for trial in but}
        self._abandon(pending for pending in self._pending if pending.trial.digest not in kept)

    def use(self, check: Check) -> None:
        """Ask another check from now on, such as the same without what was kept warm; that one ends at the end."""
        self.abandon_all()
        self._used.append(self.check)
        self.check = check

    def close(self) -> None:
        """End everything, and leave no candidate behind."""
        self.abandon_all()
        if self._given is None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._clear(wait=self._given is None)
        for check in (self.check, *self._used):
            check.close()
        for place in self._places - ({self.candidate} if self.files.keep_last else set()):
            with contextlib.suppress(OSError):  # what went wrong before is told, not this
                clear(place, whole=True)
        for place in self._places:
            cleanup.keep(place)

    def _own_executor(self) -> Executor:
        if self.jobs == 1 and not self.check.stoppable:
            return Inline()
        return ThreadPoolExecutor(2 * self.jobs, thread_name_prefix="biopsy-check")  # some may still be ending

    def _runs_of(self, digest: bytes) -> list[Judged]:
        if digest not in self._runs:
            self._runs[digest] = [] if self.journal is None else self.journal.runs(digest)
            self.tally.remembered += len(self._runs[digest])
        return self._runs[digest]

    def _remember(self, trial: Trial, judged: Judged) -> None:
        self._runs[trial.digest][-1] = replace(judged, evidence=replace(judged.evidence, output=b""))
        if self.journal is not None and trial.stage not in _NOT_REMEMBERED:
            self.journal.add(trial.digest, judged, stage=trial.stage, description=trial.description, nodes=trial.size)

    def _run(self, trial: Trial, wanted: int) -> Judged:
        """The next run of a model to end; as many as are wanted are begun, if so many may run at once."""
        self._spend()
        mine = [pending for pending in self._pending if pending.trial.asks_the_same(trial)]
        while not mine or len(mine) < min(wanted, self.jobs):
            others = [pending for pending in self._pending if pending not in mine]
            if len(self._pending) >= self.jobs and mine and self.repetitions == 1:
                break  # one more run of this is worth no more than what was begun ahead
            self._abandon(others[len(others) - max(0, len(self._pending) + 1 - self.jobs) :])
            mine.append(self._submit(trial))
            self._pending.append(mine[-1])
        return self._ended(mine[0])

    def _spend(self) -> None:
        self._asked += 1
        if not self.limited:
            return
        if self._budget.checks is not None and self._asked > self._budget.checks:
            raise BudgetSpentError(f"--max-checks {self._budget.checks}")
        if self._seconds_left() == 0:
            raise BudgetSpentError(f"--max-time {self._budget.seconds:g}")

    def _seconds_left(self) -> float | None:
        if not self.limited or self._budget.seconds is None:
            return None
        return max(0.0, self._budget.seconds - (time.monotonic() - self._started))

    def _nearly_spent(self) -> bool:
        return (
            self.limited
            and self._budget.checks is not None
            and self._asked + len(self._pending) > (self._budget.checks)
        )

    def _submit(self, trial: Trial) -> PendingRun:
        self._clear()
        path = trial.place or self._free_place()
        number, self._number = self._number, self._number + 1
        if trial.stage not in PROBES:
            self.files.before(self._iteration)
        check = trial.check or self.check
        self.listener(events.Checking(number, trial.stage, trial.description, trial.size, self.left, check.line(path)))
        refused = self.files.feed(trial.parts, first=self.reference is None)
        if refused is not None:
            future: Future[Evidence] = Future()
            future.set_result(refused)
            return PendingRun(number, trial, path, future, None)
        work = Task(check, path, None if trial.place else trial.parts, () if trial.check else self.original)
        if self._given is not None or not self.check.stoppable:
            return PendingRun(number, trial, path, self._executor.submit(run_check, work), None)
        stop = Stop()
        return PendingRun(number, trial, path, self._executor.submit(run_check, work, stop), stop)

    def _free_place(self) -> Path:
        """A path for a candidate that no run looks at now; the first is where the user knows it to be."""
        taken = {pending.path for pending in (*self._pending, *self._ending)}
        path, number = self.candidate, 0
        while path in taken or (number and path not in self._places and os.path.lexists(path)):
            number += 1
            path = self.candidate.with_name(f"{self.candidate.stem}.{number}{self.candidate.suffix}")
        self._places.add(path)
        return path

    def _ended(self, pending: PendingRun) -> Judged:
        """Wait for a run, and tell of it."""
        try:
            evidence = pending.future.result(self._seconds_left())
        except NotYetError:
            if pending.future.done():
                raise  # the check's own
            self.abandon_all()
            raise BudgetSpentError(f"--max-time {self._budget.seconds:g}") from None
        finally:
            if pending in self._pending and pending.future.done():
                self._pending.remove(pending)
                _free(pending)
        judged = self._weighed(judge(evidence, self.rules, self.reference))
        self.tally.outcomes[judged.outcome] += 1
        self._tell(pending, judged)
        return judged

    def _weighed(self, judged: Judged) -> Judged:
        """The same failure in kind is another one if it is much smaller and only rounding."""
        said = judged.evidence.verdict
        if judged.outcome is not Outcome.REPRODUCES or not self.original:
            return judged
        reason = why_not(said.mismatches, self.original, said.rounding)
        if said.rounding is not None and said.rounding.verdict == "unknown" and not self._told_unjudged:
            self._told_unjudged = True
            self.listener(
                events.Remark(f"rounding   float64 could not judge; error sizes decide: {said.rounding.reason}")
            )
        if reason is None:
            return judged
        return replace(judged, outcome=Outcome.OTHER_FAILURE, reason=f"{judged.reason}, {reason}")

    def _tell(self, pending: PendingRun, judged: Judged) -> None:
        trial, outcome, evidence = pending.trial, judged.outcome, judged.evidence
        if outcome is Outcome.REPRODUCES and trial.stage not in PROBES:
            self.left = trial.size
        self.listener(
            events.Checked(
                pending.number,
                trial.stage,
                outcome.value,
                judged.reason,
                trial.size,
                self.left,
                evidence.seconds,
                evidence.output,
            )
        )
        if outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                next_steps=[f"run it by hand: {self.check.line(self.model or pending.path)}"],
            )
        if trial.stage not in PROBES:
            for missing in self.files.artifacts.sort(outcome, self._iteration, trial.stage):
                self.listener(events.Remark(f"the artifact {missing} was not there after iteration {self._iteration}"))
            self._iteration += 1

    def _note_other_failure(self, trial: Trial, judged: Judged) -> None:
        if judged.outcome not in {Outcome.OTHER_FAILURE, Outcome.INVALID} or trial.digest in self._noted:
            return
        self._noted.add(trial.digest)
        if judged.outcome is Outcome.INVALID:
            self.tally.cannot_say[judged.reason] += 1
            return
        found = self.tally.other_failures.setdefault(judged.reason, OtherFailure())
        found.times += 1
        if found.times == 1:
            found.model = self._keep_other(trial, len(self.tally.other_failures))

    def _abandon(self, flights: Iterator[PendingRun] | Sequence[PendingRun]) -> None:
        for pending in list(flights):
            self._pending.remove(pending)
            self._ending.append(pending)
            if not pending.future.cancel() and pending.stop is not None and not pending.future.done():
                pending.stop.set()
            self.listener(events.Abandoned(pending.number))

    def _clear(self, *, wait: bool = False) -> None:
        """Free what belongs to runs that were abandoned and have ended."""
        for pending in list(self._ending):
            if wait or pending.future.done():
                self._ending.remove(pending)
                _free(pending)


def _free(pending: PendingRun) -> None:
    if pending.stop is not None:
        pending.stop.close()


def concluded(runs: Sequence[Judged], needed: int) -> Judged | None:
    """What several runs on one model say together; None if more are needed.

    One that reproduces is enough. Otherwise ``needed`` of them must not, unless the check cannot say.
    """
    for judged in runs:
        if judged.outcome is Outcome.REPRODUCES:
            return judged
    if not runs or (len(runs) < needed and runs[-1].outcome not in _SAID_ONCE):
        return None
    counts = Counter(judged.outcome for judged in runs)
    if len(counts) == 1:
        return runs[-1]
    told = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    return replace(runs[-1], outcome=Outcome.UNSTABLE, reason=f"{len(runs)} runs: {told}")
