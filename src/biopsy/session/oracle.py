"""The oracle of a search: it answers what the check says of a model, from memory or by as many runs as needed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.checks.journal import Journal
from biopsy.checks.judge import RUNS_TO_TELL_APART
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.session.conditions import SteadyProgram
from biopsy.session.files import Iterations
from biopsy.session.pool import PendingRun, Pool
from biopsy.session.trial import LOOK, BudgetMeter, FailureJudge, SearchTally, Stage, Trial, cannot_run

_FEW = 16
"""Nodes of a candidate after which bisection needs about five more checks, as long as a process takes to load."""


class Oracle:
    """Asks a check about models: each as often as its answer needs, several at once, and none twice.

    ``left`` is the size of the best model so far, for the progress line; an iteration with the outcome ``advances``
    sets it. ``model`` is the original's file, which still exists when the user repeats a check.
    """

    def __init__(
        self,
        pool: Pool,
        judge: FailureJudge,
        iterations: Iterations,
        listener: events.Listener,
        *,
        tally: SearchTally,
        budget: BudgetMeter,
        advances: Outcome | None = Outcome.REPRODUCES,
        model: Path | None = None,
    ) -> None:
        self.pool = pool
        self.failure = judge
        self.tally = tally
        self.budget = budget
        self.memory = OutcomeMemory(tally)
        self.beside = Beside(self)
        self._program = SteadyProgram(pool.check.programs)
        self.left = 0
        self._iterations = iterations
        self.listener = listener
        self._advances = advances
        self._model = model

    @property
    def check(self) -> Check:
        """The check in use."""
        return self.pool.check

    @property
    def jobs(self) -> int:
        """How many checks may run at once."""
        return self.pool.jobs

    def judge(self, trial: Trial, *, alone: bool = False, meanwhile: Callable[[], object] | None = None) -> Judged:
        """The outcome of a model, from memory as far as possible.

        ``alone``: nothing runs beside it, so it need not run in another thread. ``meanwhile`` is called while it is
        waited for, whenever a run begun ahead has ended. Raises CheckError if the check could not be run,
        BudgetSpentError if it may not be run any more.
        """
        # A function can run in this thread: it cannot be stopped anyway.
        here = alone and not self.pool.is_shared and not (trial.check or self.check).stoppable
        while (judged := self.memory.conclusion(trial)) is None:
            wanted = self.memory.repetitions - len(self.memory.runs(trial))
            self.memory.add(trial, self._run(trial, wanted, here=here, meanwhile=meanwhile))
        self.pool.abandon(
            run for run in self.pool.pending if run.trial.digest == trial.digest and not run.trial.is_kept
        )
        self.tally.meet(trial, judged)
        return judged

    def in_turn(self, trials: Iterable[Trial]) -> Generator[Judged, None, None]:
        """Yield the outcomes of models in turn; the next ones are checked meanwhile, until the generator is closed."""
        source, waiting = iter(trials), deque[Trial]()
        try:
            while True:
                waiting.extend(islice(source, self.jobs - len(waiting)))
                if not waiting:
                    return
                if self.jobs > 1:
                    self.ahead(iter(waiting))
                yield self.judge(waiting.popleft())
        finally:
            self.pool.abandon_all()

    def again(self, trial: Trial, wanted: int = 1) -> Judged:
        """Run a model once more, whatever is remembered; ``wanted`` is how many runs will be asked for."""
        judged = self._run(trial, wanted)
        if trial.stage.is_remembered:
            self.memory.add(trial, judged)
        return judged

    def are_told_apart(self, failing: Trial, passing: Trial) -> bool:
        """Whether one model fails and another one passes, run in turn, so often that no flaky failure explains it.

        If the failure is known to be flaky, only the passing model is run.
        """
        is_flaky = self.memory.repetitions > 1
        for _ in range(max(self.memory.repetitions, RUNS_TO_TELL_APART)):
            if self.again(passing).outcome is not Outcome.PASSES:
                return False
            if not is_flaky and self.again(failing).outcome is not Outcome.REPRODUCES:
                return False
        return True

    def has_ended(self, trial: Trial) -> bool:
        """Whether a run of a model begun ahead has ended."""
        return any(run.future.done() for run in self.pool.runs_of(trial))

    def foretold(self, trial: Trial) -> Judged | None:
        """The outcome of a model if it follows from memory and ended runs; None otherwise.

        For guesses only: nothing is counted or remembered.
        """
        ended = [run.future for run in self.pool.runs_of(trial) if run.future.done() and not run.future.cancelled()]
        runs = [self.failure.judge(future.result(), tells=False) for future in ended if future.exception() is None]
        return concluded([*self.memory.runs(trial), *runs], self.memory.repetitions)

    def undo(self) -> bytes | None:
        """Forget the newest answer, which the person takes back. Returns the model's digest, None if there is none."""
        undone = self.memory.undo()
        if undone is None:
            self.listener(events.Remark("there is no answer to take back"))
            return None
        digest, forgotten = undone
        for judged, stage in forgotten:
            if self.tally.undo(judged.outcome) and stage.is_iteration:
                self._iterations.number -= 1
        return digest

    def ahead(self, trials: Iterator[Trial]) -> None:
        """Begin checks of models that may be asked about soon, each as often as it needs, while there is room.

        Trials are taken from ``trials`` only while there is room.
        """
        self.beside.attend()
        running = len(self.pool.running)
        room = self.pool.jobs - running  # as of now: runs that end meanwhile leave room for what is asked next
        beside = len(self.pool.kept)
        while room > 0:
            trial = next(trials, None)
            if trial is None:
                return
            if self.foretold(trial) is not None:
                continue
            begun = sum(run.trial.digest == trial.digest for run in self.pool.pending)
            lacking = self.memory.repetitions - len(self.memory.runs(trial)) - begun
            for _ in range(min(room, lacking)):
                if not self.budget.allows(running - beside):
                    return
                self.begin(trial)
                room, running = room - 1, running + 1

    def keep_going(self, soon: Sequence[Trial]) -> None:
        """Begin what may be asked about soon, and stop other runs; ended ones are kept for later."""
        self.pool.abandon_running(but=soon)
        self.ahead(iter(soon))

    def close(self) -> None:
        """Stop every check, and leave no candidate behind."""
        self.pool.close()
        self._iterations.close()

    def _run(
        self, trial: Trial, wanted: int, *, here: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> Judged:
        """Wait for the next run of a model; as many as are ``wanted`` are begun, if that many may run at once.

        ``here``: in this thread, one after the other.
        """
        self.beside.attend()
        self.budget.spend()
        runs = self.pool.runs_of(trial)
        while not runs or len(runs) < min(wanted, 1 if here else self.pool.jobs):
            if runs and self.memory.repetitions == 1 and len(self.pool.running) >= self.pool.jobs:
                break  # another run of this model is worth no more than what was begun ahead
            self.pool.make_room(kept=runs)
            runs.append(self.begin(trial, here=here))
        run = runs[0]
        evidence = self.pool.wait(run, self.budget.seconds_left, meanwhile)
        if evidence is None:
            self.pool.abandon_all()
            raise self.budget.time_is_up()
        return self.judged(run, evidence)

    def begin(self, trial: Trial, *, here: bool = False) -> PendingRun:
        """Begin a run of a model; there must be room. ``here``: it ends before this returns."""
        is_small = trial.stage is LOOK or (trial.stage.is_iteration and trial.size <= _FEW)
        if is_small and self.failure.reference is not None:
            self.check.foresee_cold()  # the last check may come soon
        run = self.pool.new_run(trial, self._iterations.number_for(trial.stage))
        self.listener(
            events.CheckingCandidate(
                number=run.number,
                stage=trial.stage.name,
                description=trial.description,
                line=run.check.line(run.path),
                nodes=trial.size,
                left=self.left,
            )
        )
        refusal = self._iterations.before(run)
        return self.pool.start(run, self.failure.original, here=here, known=refusal)

    def judged(self, run: PendingRun, evidence: Evidence) -> Judged:
        """Judge, count and report a run that has ended. Raises CheckError if the check could not be run.

        Raises CheckChanged if the check has changed, because it is unknown which version answered.
        """
        changing = self._program.after_run()
        if changing:
            names = " and ".join(path.name for path in changing)
            self.listener(events.Remark(f"checks     run cold: each run changes {names}, so edits go unnoticed"))
            self.pool.use(self.check.cold())
        if evidence.remark:
            self.listener(events.Remark(evidence.remark))
        judged = self.failure.judge(evidence)
        self.tally.outcomes[judged.outcome] += 1
        trial, outcome = run.trial, judged.outcome
        if outcome is self._advances and trial.stage.is_iteration and not trial.is_kept:
            self.left = trial.size
        self.listener(
            events.CheckedCandidate(
                number=run.number,
                stage=trial.stage.name,
                outcome=outcome.value,
                reason=judged.reason,
                seconds=evidence.seconds,
                output=evidence.output,
                nodes=trial.size,
                left=self.left,
            )
        )
        if outcome is Outcome.INFRASTRUCTURE:
            raise cannot_run(judged, self.check.line(self._model or run.path))
        self._iterations.after(run, outcome)
        return judged


_SAID_ONCE = frozenset({Outcome.INVALID, Outcome.TIMED_OUT})
"""Outcomes that are not repeated, however flaky the failure is."""


class OutcomeMemory:
    """The memory of a search: every answer about each model, by the digest of its bytes.

    A ``journal`` adds the answers of an interrupted search and stores new ones. ``repetitions`` is how many runs that
    do not reproduce make a model pass: one, unless the failure is flaky.
    """

    def __init__(self, tally: SearchTally) -> None:
        self.journal: Journal | None = None
        self.repetitions = 1
        self._tally = tally
        self._runs: dict[bytes, list[Judged]] = {}
        self._stages: dict[bytes, list[Stage]] = {}
        self._asked: list[bytes] = []

    def runs(self, trial: Trial) -> list[Judged]:
        """The remembered runs of a model, oldest first."""
        digest = trial.digest
        if digest not in self._runs:
            self._runs[digest] = [] if self.journal is None else self.journal.runs(digest)
            self._tally.remembered += len(self._runs[digest])
        return self._runs[digest]

    def conclusion(self, trial: Trial) -> Judged | None:
        """The outcome that the runs of a model amount to; None if more are needed."""
        return concluded(self.runs(trial), self.repetitions)

    def add(self, trial: Trial, judged: Judged) -> None:
        """Remember one run, without its output. Raises CheckError if the journal cannot be written."""
        self.runs(trial).append(replace(judged, evidence=replace(judged.evidence, output=b"")))
        self._stages.setdefault(trial.digest, []).append(trial.stage)
        if self.journal is not None and trial.stage.is_remembered and judged.evidence.may_be_kept:
            self.journal.add(
                trial.digest, judged, stage=trial.stage.name, description=trial.description, nodes=trial.size
            )
        self._asked.append(trial.digest)

    def was_asked(self, trial: Trial) -> bool:
        """Whether this process asked about a model, not only an earlier one that left the journal."""
        return trial.digest in self._asked

    def undo(self) -> tuple[bytes, Sequence[tuple[Judged, Stage]]] | None:
        """Forget the model that was asked about last; None if there is none.

        Returns its digest, and the forgotten runs of this process, each with its stage.
        """
        if not self._asked:
            return None
        digest = self._asked.pop()
        stages = self._stages.pop(digest, [])
        runs = self._runs.pop(digest, [])
        if self.journal is not None:
            self.journal.forget(digest)
        own_runs = runs[len(runs) - len(stages) :]  # those of the journal come first
        return digest, list(zip(own_runs, stages, strict=True))

    def note(self, key: str, value: str) -> None:
        """Note a small fact in the journal, if there is one. Raises CheckError if it cannot be written."""
        if self.journal is not None:
            self.journal.note(key, value)

    def noted(self, key: str) -> str | None:
        """The fact noted under a key by this or an interrupted search; None if there is none."""
        return None if self.journal is None else self.journal.noted(key)

    @property
    def journal_path(self) -> Path | None:
        """The path of the journal, for messages."""
        return None if self.journal is None else self.journal.path


def concluded(runs: Sequence[Judged], needed: int) -> Judged | None:
    """The outcome that several runs on one model amount to; None if more are needed.

    One run that reproduces is enough. Otherwise, ``needed`` runs must not reproduce, unless the check cannot say.
    """
    for judged in runs:
        if judged.outcome is Outcome.REPRODUCES:
            return judged
    if not runs or (len(runs) < needed and runs[-1].outcome not in _SAID_ONCE):
        return None
    counts = Counter(judged.outcome for judged in runs)
    if len(counts) == 1:
        return runs[-1]
    summary = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    return replace(runs[-1], outcome=Outcome.UNSTABLE, reason=f"{len(runs)} runs: {summary}")


# Questions beside the search. Each has an answer that is almost certain, such as that the original fails once more, so
# the search begins without waiting. But nothing is concluded from it before all are answered as expected.

Remedy: TypeAlias = Callable[[], None] | errors.CheckError
"""What to do after an unexpected answer, once the search has stopped; or the error that ends everything."""

OnAnswer: TypeAlias = Callable[[Judged | errors.CheckError], Remedy | None]
"""Takes an answer; returns None if it is as expected."""


class SearchInDoubtError(Exception):
    """An answer beside the search was unexpected, so its findings may be wrong until the ``remedy`` is applied."""

    def __init__(self, remedy: Remedy) -> None:
        super().__init__("a question beside the search was answered otherwise than expected")
        self.remedy = remedy


@dataclass
class _Question:
    trial: Trial
    on_answer: OnAnswer
    run: PendingRun | None = None


@dataclass
class Beside:
    """The open questions of an oracle. They may use all but one of its places."""

    oracle: Oracle
    _open: list[_Question] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether all questions have been answered."""
        return not self._open

    def ask(self, trial: Trial, on_answer: OnAnswer) -> None:
        """Check a model once, as soon as there is a place. Raises BudgetSpentError if it may not be checked."""
        self.oracle.budget.spend()
        self._open.append(_Question(replace(trial, is_kept=True), on_answer))

    def attend(self) -> None:
        """Take the answers of ended runs, and begin as many as there is room for. Raises SearchInDoubtError."""
        pool = self.oracle.pool
        for question in [each for each in self._open if each.run is not None and each.run.future.done()]:
            self._take(question)
        waiting = [question for question in self._open if question.run is None]
        room = min(pool.jobs - 1 - len(pool.kept), pool.jobs - len(pool.running))
        for question in waiting[: max(0, room)]:
            question.run = self.oracle.begin(question.trial)

    def settle(self) -> None:
        """Wait for all answers. Raises SearchInDoubtError, and BudgetSpentError if time is limited."""
        while self._open:
            question = self._open[0]
            if question.run is None:
                self.oracle.pool.make_room(kept=())
                question.run = self.oracle.begin(question.trial)
            self._take(question)

    def _take(self, question: _Question) -> None:
        """Wait for an answer and take it. Raises BudgetSpentError if there is no time left; the question stays open."""
        oracle, trial, run = self.oracle, question.trial, question.run
        assert run is not None
        answer: Judged | errors.CheckError
        try:
            evidence = oracle.pool.wait(run, oracle.budget.seconds_left)
            if evidence is None:
                raise oracle.budget.time_is_up()
            oracle.tally.beside += 1
            answer = oracle.judged(run, evidence)
            if trial.stage.is_remembered:
                oracle.memory.add(trial, answer)
        except errors.CheckChanged:
            raise
        except errors.CheckError as error:
            answer = error
        self._open.remove(question)
        remedy = question.on_answer(answer)
        if remedy is not None:  # the other answers are not needed any more
            runs = [other.run for other in self._open if other.run is not None]
            self._open.clear()
            oracle.pool.abandon(runs)
            raise SearchInDoubtError(remedy)
