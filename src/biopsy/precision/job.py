"""A whole search over precisions: both ends are checked, layers lowered, the result written and checked again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.artifacts import require_distinct
from biopsy.checks.interactive import UndoError
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check, Judged, Outcome
from biopsy.checks.task import copies
from biopsy.filesystem.privacy import as_private_as
from biopsy.filesystem.write import require_writable
from biopsy.model.index import ModelIndex
from biopsy.precision.cost import Cost
from biopsy.precision.mixed_models import MixedModels
from biopsy.precision.result import Found, Target, write_names, write_report
from biopsy.precision.search import Direction, LayerSearch, Mode, Proposal, search_of, usual_checks
from biopsy.precision.validity import require_valid
from biopsy.reduction.result import write_result
from biopsy.search.drive import drive, first_that
from biopsy.search.lookahead import foresee_any
from biopsy.session.flakiness import Flakiness, Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.trials import Budget, BudgetSpentError, Parallelism, Trial, Trials
from biopsy.session.workspace import Workspace, sources, workspace

_FINAL_RUNS = 3
"""Fresh processes in which the result must pass, unless --repeat says otherwise."""

_MOST_KEPT = 4
"""Models that are kept besides those that may be checked next."""

_MOST_ROUNDS = 4
"""Searches that are run, each knowing more, while the result is found to waver."""


@dataclass(frozen=True)
class Job:
    """What to search and how; see the options of ``biopsy debug precision``."""

    target: Target = field(default_factory=Target)
    mode: Mode = "minimal"
    direction: Direction = "forward"
    cost: Cost = "count"
    rules: Rules = field(default_factory=Rules)
    candidate: Path = Path("polygraphy_debug.onnx")
    files: IterationFiles = field(default_factory=IterationFiles)
    parallelism: Parallelism = field(default_factory=Parallelism)
    budget: Budget = field(default_factory=Budget)
    repeating: Repeating = field(default_factory=Repeating)


def run_job(
    index: ModelIndex,
    mixed_models: Callable[[Workspace], MixedModels],
    check: Check,
    job: Job,
    listener: events.Listener = events.ignore,
) -> Found:
    """Search the layers of a model. ``mixed_models`` makes what the candidates are made by.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if it cannot be run or the result
    does not pass when it is checked again, Interrupted if it is stopped; the best model by then is written.
    """
    for path in (job.target.output, job.target.report, job.target.names):
        if path is not None:
            require_writable(path)
            require_distinct(job.files.artifacts.files, path)
    listener(
        events.ModelRead(
            str(index.path or "model"),
            len(index.nodes),
            index.opset,
            len(index.fed_inputs()),
            len(index.outputs),
            index.weight_bytes,
        )
    )
    place = workspace(index, job.candidate, may_move=check.names_candidate and not job.files.artifacts.files)
    if place.remark is not None:
        listener(events.Remark(place.remark))
    try:
        with as_private_as(sources(index)):
            made = mixed_models(place)
            trials = Trials(check, job.rules, place.candidate, _silent, job.files, job.parallelism, job.budget)
            return _Run(index, made, trials, place, job, listener).found()
    finally:
        told = place.leave()
        if told is not None:
            listener(events.Remark(told, warning=True))


def _silent(event: events.Event) -> None:
    """The listener of trials until the run has put its own in place."""


class _Run:
    """One search from its beginning to its end. ``best`` are the layers that are high in the best model so far."""

    def __init__(
        self,
        index: ModelIndex,
        mixed_models: MixedModels,
        trials: Trials,
        place: Workspace,
        job: Job,
        listener: events.Listener,
    ) -> None:
        self._index = index
        self._mixed_models = mixed_models
        self._trials = trials
        self._place = place
        self._job = job
        self._listener = listener
        self._all = tuple(layer.number for layer in mixed_models.layers)
        self._flakiness = Flakiness(trials, job.repeating)
        self._proven = False
        self._verified = 0
        self._stopped: str | None = None
        self._made: dict[frozenset[int], Trial] = {}
        self.best: tuple[int, ...] | None = None
        trials.listener = self._tell
        trials.left = len(self._all)

    def found(self) -> Found:
        """Do it all."""
        started = time.monotonic()
        if not self._all:
            raise errors.UsageError("no node of this model can be computed in another precision", next_steps=_why(self))
        try:
            best = self._searched()
            while best is None:  # an answer was taken back: ask again from there, all others being remembered
                best = self._searched()
            self._write(best)
            self._settle()
        except (KeyboardInterrupt, errors.Interrupted) as stop:
            raise errors.Interrupted(self._left(), kept=self._rescue()) from stop
        except errors.CheckError as error:
            if error.kept is None or self.best is None or self.best == self._all:
                raise
            raise errors.CheckError(
                error.summary, details=error.details, kept=self._rescue(), next_steps=error.next_steps
            ) from error
        finally:
            self._trials.close()
        found = self._result(time.monotonic() - started)
        if self._job.target.report is not None:
            write_report(found, self._job.target.report)
        if self._job.target.names is not None:
            write_names(found, self._job.target.names)
        return found

    def _searched(self) -> tuple[int, ...] | None:
        """Check both ends and search; None if a person has taken an answer back. Raises Interrupted if a limit came
        before there was anything to write.
        """
        try:
            self._until_spent(self._try_ends)
            if self.best is None:
                raise errors.Interrupted(f"stopped by {self._stopped}")
            self._search()
        except UndoError:
            if self._trials.take_back() is None:
                self._listener(events.Remark("there is no answer to take back"))
            self.best, self._proven = None, False
        return self.best

    # Both ends

    def _try_ends(self) -> None:
        """Every layer high must pass, every layer low should fail."""
        self._trials.limited = True
        high = self._trial(self._all, "high", "every layer high")
        low = self._trial((), "low", "every layer low")
        self._trials.ahead(iter([high, low]))
        judged = self._trials.judge(high)
        self._listener(events.EndChecked("high", _word(judged.outcome), judged.reason, judged.evidence.seconds))
        if judged.outcome is not Outcome.PASSES:
            raise self._high_fails(judged)
        self._trials.check.expect(judged.evidence.seconds)
        self.best = self._all
        judged = self._trials.judge(low)
        self._listener(events.EndChecked("low", _word(judged.outcome), judged.reason, judged.evidence.seconds))
        if judged.outcome is Outcome.PASSES:
            self.best, self._proven = (), True
        elif judged.outcome is Outcome.REPRODUCES:
            self._flakiness.begin(low, 1)

    def _high_fails(self, judged: Judged) -> errors.BiopsyError:
        line = self._trials.check.line(self._index.path or self._place.candidate)
        if judged.outcome is Outcome.INVALID:
            return errors.CheckError(
                f"the check cannot say whether the model passes with every layer high: {judged.reason}",
                next_steps=[line],
            )
        return errors.HighPrecisionFails(
            f"the check fails even with every layer in {self._mixed_models.high_name} ({judged.reason}), so no "
            "choice of layers can pass",
            details=[f"  tried   {line}"],
            next_steps=[
                "run that line by hand; if it should pass, look at its inputs, golden values and tolerances",
                "if the model itself is wrong: biopsy debug reduce",
            ],
        )

    # The search

    def _search(self) -> None:
        """Search until the result does not waver any more; each round knows what the last one has found out."""
        for _ in range(_MOST_ROUNDS):
            if self._stopped is not None:
                return
            if self.best:
                self._until_spent(self._follow)
            if self._stopped is not None or not self._is_flaky():
                return
            self.best, self._proven = self._all, False

    def _follow(self) -> None:
        job, trials = self._job, self._trials
        started, checks, before = time.monotonic(), trials.tally.checks, self._count()
        self._listener(events.StageStarted(job.mode, before, usual_checks(before, job.mode)))
        trials.limited = True
        answers: list[Proposal | None] = []

        def passes(proposal: Proposal) -> bool:
            passed = self._passes(proposal, answers)
            answers.append(proposal if passed else None)
            return passed

        drive(self._begin(), first_that(passes))
        trials.abandon_all()
        self._proven = job.mode == "minimal"
        taken = trials.tally.checks - checks
        self._listener(events.StageDone(job.mode, before, self._count(), taken, time.monotonic() - started))

    def _begin(self) -> LayerSearch:
        job = self._job
        return search_of(self._mixed_models.layers, job.mode, job.direction, job.cost)

    def _passes(self, proposal: Proposal, answers: Sequence[Proposal | None]) -> bool:
        trial = self._trial(proposal.high, self._job.mode, proposal.description)
        if self._trials.jobs > 1 and not self._trials.is_known(trial):
            likely = (
                self._trial(each.high, self._job.mode, each.description) for each in foresee_any(self._begin, answers)
            )
            self._trials.ahead(likely)
        passed = self._trials.judge(trial).outcome is Outcome.PASSES
        if passed and len(proposal.high) < self._count():
            self.best = proposal.high
        return passed

    def _is_flaky(self) -> bool:
        """Check the result again; True if it fails now, which nobody knew: what passed before may have been luck."""
        assert self.best is not None
        if self._job.repeating.repeat is not None or not self._trials.check.automatic or self.best == self._all:
            return False
        trial = self._trial(self.best, "confirm", "the fewest so far once more")
        for done in range(_FINAL_RUNS - 1):
            if self._trials.again(trial, _FINAL_RUNS - 1 - done).outcome is not Outcome.PASSES:
                if self._trials.repetitions == 1:
                    self._flakiness.noticed_late(trial, done + 2)
                return True
        return False

    # The end

    def _settle(self) -> None:
        """The last word: the model is valid, and the file as it was written must pass, in processes of their own."""
        assert self.best is not None
        check = self._trials.check
        require_valid(
            self._mixed_models.parts(frozenset(self.best)), [bytes(self._index.buffer)], self._job.target.output
        )
        if not check.automatic:
            return
        self._trials.use(check.cold())
        runs = self._job.repeating.repeat or max(_FINAL_RUNS, self._trials.repetitions)
        with self._copies() as fresh:
            for done in range(runs):
                judged = self._trials.again(fresh(), 1)
                if judged.outcome is not Outcome.PASSES:
                    raise self._not_verified(judged, done)
        self._verified = runs
        self._listener(events.Verified(self._written(), 0, runs))

    def _not_verified(self, judged: Judged, passed: int) -> errors.CheckError:
        return errors.CheckError(
            f"the result does not pass when it is checked again ({_word(judged.outcome)}: {judged.reason}; it passed "
            f"{passed} times before): the check does not always say the same",
            kept=f"{self._written()}, which passed before" if self._job.target.output else None,
            next_steps=["--repeat N    a model passes only if it passes N times"],
        )

    def _written(self) -> str:
        return str(self._job.target.output or "the mixed model")

    @contextlib.contextmanager
    def _copies(self) -> Iterator[Callable[[], Trial]]:
        """Trials of copies of the file written, beside it so that they find its weights; of the model if none is."""
        assert self.best is not None
        output, plain = self._job.target.output, self._trial(self.best, "final", "the result")
        if output is None or not self._trials.check.names_candidate or not output.is_file():
            yield lambda: plain
            return
        with copies(output) as fresh:
            yield lambda: replace(plain, place=fresh())

    def _write(self, high: tuple[int, ...]) -> None:
        target = self._job.target
        if target.output is not None:
            folder = self._place.candidate.parent
            parts = self._mixed_models.parts(frozenset(high))
            write_result(parts, target.output, folder, target.external, self._index.has_external_data)

    def _rescue(self) -> str | None:
        """Write the best model so far; returns what to tell of it."""
        if self.best is None or self.best == self._all or self._job.target.output is None:
            return None
        try:
            self._write(self.best)
        except (errors.BiopsyError, OSError):
            return None
        return f"{self._job.target.output}, which passes"

    def _left(self) -> str:
        if self.best is None:
            return "before both ends were checked; nothing was written"
        return f"{len(self.best)} of {len(self._all)} layers are high so far"

    # What all of it needs

    def _trial(self, high: Sequence[int], stage: str, description: str) -> Trial:
        """The model with these layers high; the last few are kept, since they are asked for again and again."""
        chosen = frozenset(high)
        found = self._made.pop(chosen, None)
        if found is None or (found.stage, found.description) != (stage, description):
            parts = found.parts if found is not None else self._mixed_models.parts(chosen)
            found = Trial(parts, len(chosen), stage, description)
        self._made[chosen] = found
        while len(self._made) > _MOST_KEPT + 2 * self._trials.jobs:
            del self._made[next(iter(self._made))]
        return found

    def _count(self) -> int:
        return len(self._all if self.best is None else self.best)

    def _until_spent(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BudgetSpentError as spent:
            self._stopped = str(spent)
            self._listener(events.Stopped(self._stopped))
        finally:
            self._trials.limited = False

    def _tell(self, event: events.Event) -> None:
        """Trials count what is left of what fails; here it is the fewest layers that are high and pass."""
        if isinstance(event, events.Checking | events.Checked):
            event = replace(event, left=self._count())
        self._listener(event)

    def _result(self, seconds: float) -> Found:
        assert self.best is not None
        job, made = self._job, self._mixed_models
        high = set(self.best)
        return Found(
            str(self._index.path or "model"),
            made.low_name,
            made.high_name,
            made.form,
            job.mode,
            job.direction,
            job.cost,
            len(self._all),
            tuple(layer for layer in made.layers if layer.number in high),
            self._proven and self._stopped is None,
            {_word(outcome): count for outcome, count in self._trials.tally.outcomes.items() if count},
            seconds,
            self._verified,
            job.target.output,
            self._stopped,
            made.range_loss(frozenset(high)),
            made.stays,
        )


def _why(run: _Run) -> list[str]:
    return [f"{count} nodes: {reason}" for reason, count in run._mixed_models.stays.items()]


def _word(outcome: Outcome) -> str:
    """The word for an outcome where no first failure is there to be reproduced: any failure is one."""
    return "failed" if outcome is Outcome.REPRODUCES else outcome.value
