"""The oracle of a search: answers what the check says of a model, from memory or by as many runs as that needs.

Who asks never sees how many checks run at the same time: an answer depends on the model alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.session.beside import Beside
from biopsy.session.budget import BudgetMeter
from biopsy.session.failure_judge import FailureJudge
from biopsy.session.iteration import Iterations
from biopsy.session.memory import OutcomeMemory, concluded
from biopsy.session.pool import PendingRun, Pool
from biopsy.session.stage import LOOK
from biopsy.session.steady_program import SteadyProgram
from biopsy.session.tally import SearchTally
from biopsy.session.trial import Trial

_FEW = 16
"""Nodes of a candidate after which bisection needs some five checks more: as long as a process takes to load."""


class Oracle:
    """Asks a check about models, each as often as its answer needs, several at once, and none twice.

    ``left`` is the size of the best model so far, for the progress line; an iteration whose outcome is ``advances``
    sets it. ``model`` is the original's file, which is still there when a person repeats a check.
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
        """The check as it is asked now."""
        return self.pool.check

    @property
    def jobs(self) -> int:
        """How many checks may run at once."""
        return self.pool.jobs

    @property
    def pending(self) -> frozenset[bytes]:
        """The digests of the models of which runs were begun ahead, and may still be asked for."""
        return frozenset(run.trial.digest for run in self.pool.pending)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether an executor of the user's runs checks."""
        return self.pool.is_shared

    def judge(self, trial: Trial, *, alone: bool = False, meanwhile: Callable[[], object] | None = None) -> Judged:
        """The outcome of a model, from memory as far as it was checked before.

        ``alone``: nothing is worth running beside it, so it is handed to no other thread that can do without one.
        ``meanwhile`` is called while it is waited for, whenever something that was begun ahead has ended.
        Raises CheckError if the check could not be run, BudgetSpentError if it may not be run any more.
        """
        while (judged := self.memory.conclusion(trial)) is None:
            wanted = self.memory.repetitions - len(self.memory.runs(trial))
            here = alone and self.pool.runs_here(trial)
            self.memory.add(trial, self._run(trial, wanted, here=here, meanwhile=meanwhile))
        self.pool.abandon(
            run for run in self.pool.pending if run.trial.digest == trial.digest and not run.trial.is_kept
        )
        self.tally.meet(trial, judged)
        return judged

    def in_turn(self, trials: Iterable[Trial]) -> Generator[Judged, None, None]:
        """The outcomes of models, one after the other; those that follow are checked meanwhile, until it is closed."""
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
            self.abandon_all()

    def again(self, trial: Trial, wanted: int = 1) -> Judged:
        """One more run on a model, whatever is remembered of it; ``wanted`` says how many more will be asked for."""
        judged = self._run(trial, wanted)
        if trial.stage.is_remembered:
            self.memory.add(trial, judged)
        return judged

    def is_known(self, trial: Trial) -> bool:
        """Whether a model would be judged without running the check."""
        return self.memory.conclusion(trial) is not None

    def has_ended(self, trial: Trial) -> bool:
        """Whether a run of a model that was begun ahead has ended."""
        return any(run.future.done() for run in self.pool.runs_of(trial))

    def foretold(self, trial: Trial) -> Judged | None:
        """The outcome of a model, by what is known of it or has ended, though nobody may have asked for it yet.

        None where that does not tell. It is good for guesses only: nothing is counted or remembered.
        """
        ended = [run.future for run in self.pool.runs_of(trial) if run.future.done() and not run.future.cancelled()]
        runs = [self.failure.guess(future.result()) for future in ended if future.exception() is None]
        return concluded([*self.memory.runs(trial), *runs], self.memory.repetitions)

    def undo(self) -> bytes | None:
        """Forget the newest answer: the person who gave it takes it back. The model's digest, None if there is none."""
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
        """Begin checks of models that may be asked about soon, as many as may run at once: each as often as it needs.

        Trials are taken from ``trials`` only while there is room.
        """
        self.beside.attend()
        running = len(self.pool.running)
        room = self.pool.jobs - running  # by now: what ends meanwhile leaves room for what is asked next
        beside = len(self.pool.kept)
        while room > 0:
            trial = next(trials, None)
            if trial is None:
                return
            for _ in range(min(room, self._lacking(trial))):
                if not self.budget.allows(running - beside):
                    return
                self.begin(trial)
                room, running = room - 1, running + 1

    def _lacking(self, trial: Trial) -> int:
        """How many more runs of a model are needed, if it passes in all of them."""
        if self.foretold(trial) is not None:
            return 0
        begun = sum(run.trial.digest == trial.digest for run in self.pool.pending)
        return self.memory.repetitions - len(self.memory.runs(trial)) - begun

    def keep_going(self, soon: Sequence[Trial]) -> None:
        """Begin what may be asked about soon, and stop what may not; answers that are there wait to be asked for."""
        self.pool.abandon_running(but=soon)
        self.ahead(iter(soon))

    def abandon_all(self, but: Sequence[Trial] = ()) -> None:
        """Stop what was begun ahead and nobody asked about, ``but`` for these."""
        self.pool.abandon_all(but)

    def close(self) -> None:
        """End every check, and leave no candidate behind."""
        self.pool.close()
        self._iterations.close()

    def _run(
        self, trial: Trial, wanted: int, *, here: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> Judged:
        """The next run of a model to end; as many as are wanted are begun, if so many may run at once.

        ``here``: in this thread, one after the other.
        """
        self.beside.attend()
        self.budget.spend()
        mine = self.pool.runs_of(trial)
        while not mine or len(mine) < min(wanted, 1 if here else self.pool.jobs):
            if mine and self.memory.repetitions == 1 and len(self.pool.running) >= self.pool.jobs:
                break  # one more run of this is worth no more than what was begun ahead
            self.pool.make_room(kept=mine)
            mine.append(self.begin(trial, here=here))
        return self._ended(mine[0], meanwhile)

    def begin(self, trial: Trial, *, here: bool = False) -> PendingRun:
        """Begin a run on a model, for which there must be room; ``here``: it ends before this returns."""
        if self._is_nearly_done(trial):
            self.check.foresee_cold()
        slot = self.pool.slot(trial, self._iterations.number_for(trial.stage))
        self.listener(
            events.CheckingCandidate(
                number=slot.number,
                stage=trial.stage.name,
                description=trial.description,
                line=slot.check.line(slot.path),
                nodes=trial.size,
                left=self.left,
            )
        )
        refusal = self._iterations.before(slot)
        if refusal is not None:
            return self.pool.answered(slot, refusal)
        return self.pool.start(slot, self.failure.original, here=here)

    def _is_nearly_done(self, trial: Trial) -> bool:
        """Whether the last check may come soon: a candidate of few nodes is asked about, or where the error begins."""
        if self.failure.reference is None:
            return False
        return trial.stage is LOOK or (trial.stage.is_iteration and trial.size <= _FEW)

    def _ended(self, run: PendingRun, meanwhile: Callable[[], object] | None) -> Judged:
        """Wait for a run, and tell of it."""
        evidence = self.pool.wait(run, self.budget.seconds_left, meanwhile)
        if evidence is None:
            self.pool.abandon_all()
            raise self.budget.time_is_up()
        return self.judged(run, evidence)

    def judged(self, run: PendingRun, evidence: Evidence) -> Judged:
        """What a run that has ended says, counted and told. Raises CheckError if the check could not be run.

        Raises CheckChanged if it is another check by now: nobody knows which one has answered.
        """
        self._require_same_program()
        if evidence.remark:
            self.listener(events.Remark(evidence.remark))
        judged = self.failure.judge(evidence)
        self.tally.outcomes[judged.outcome] += 1
        self._tell(run, judged, evidence)
        return judged

    def _require_same_program(self) -> None:
        """Raise CheckChanged if somebody has edited the check. One that changes itself is run cold from now on."""
        changing = self._program.after_run()
        if changing:
            names = " and ".join(path.name for path in changing)
            self.listener(events.Remark(f"checks     run cold: each run changes {names}, so edits go unnoticed"))
            self.pool.use(self.check.cold())

    def _tell(self, run: PendingRun, judged: Judged, evidence: Evidence) -> None:
        trial, outcome = run.trial, judged.outcome
        if outcome is self._advances and trial.stage.is_iteration and not trial.is_kept:
            self.left = trial.size
        self.listener(
            events.CheckedCandidate(
                number=run.slot.number,
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
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                next_steps=[f"run it by hand: {self.check.line(self._model or run.slot.path)}"],
            )
        self._iterations.after(run.slot, outcome)
