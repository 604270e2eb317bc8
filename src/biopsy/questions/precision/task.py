"""Runs a search over precisions with a check: layers are lowered as long as the model passes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Check, Judged, Outcome, require_distinct
from biopsy.checks.task import EngineFileCheck
from biopsy.model.index import ModelIndex
from biopsy.model.infer import checker_objection, judged_form
from biopsy.model.load import parse
from biopsy.processes.writing import require_writable
from biopsy.questions.precision.mixed_models import MixedModels
from biopsy.questions.precision.search import (
    LayerSearch,
    PrecisionJob,
    PrecisionProposal,
    PrecisionResult,
    search_of,
    usual_checks,
)
from biopsy.search.drive import drive, first_that, foresee_any
from biopsy.session.checked_search import (
    CheckedSearch,
    Flakiness,
    JournalIdentity,
    oracle_of,
    prepared,
    require_confirmed,
    run_resumable,
    trials_of_file,
)
from biopsy.session.files import ResultFile, write_result
from biopsy.session.oracle import Oracle
from biopsy.session.trial import CONFIRM, FINAL, HIGH, LOW, Stage, Trial
from biopsy.session.workspace import Workspace


def run_job(
    index: ModelIndex,
    mixed_models: Callable[[Workspace], MixedModels],
    check: Check,
    job: PrecisionJob,
    listener: events.Listener = events.ignore,
) -> PrecisionResult:
    """Search the layers of a model. ``mixed_models`` returns the maker of candidates.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if it cannot be run or the result
    does not pass again, Interrupted after the best model so far is written.
    """
    for path in (job.output, job.report, job.names, job.search.resume.save):
        if path is not None:
            require_writable(path)
            require_distinct(job.search.files.artifacts.files, path)
    with prepared(index, check, job.search, listener) as place:
        models = mixed_models(place)
        if not models.layers:
            raise errors.UsageError(
                "no node of this model can be computed in another precision",
                next_steps=[f"{count} nodes: {reason}" for reason, count in models.stays.items()],
            )
        oracle = oracle_of(index, check, job.search, place, listener, advances=None)
        flakiness = Flakiness(oracle, job.search.repeating)
        task = PrecisionTask(index, models, oracle, flakiness, place, job)
        search = CheckedSearch(task, oracle, task.result_file)
        identity = JournalIdentity(
            index=index,
            check=check,
            search=job.search,
            options={
                "low precision": models.low_name,
                "--precision": models.high_name,
                "form": models.form,
                "--mode": job.mode,
                "--dir": job.direction,
                "--cost": job.cost,
            },
            written=[*job.files, *([check.built] if isinstance(check, EngineFileCheck) else [])],
        )
        stopped = run_resumable(search, identity)
        result = task.result(search.seconds, stopped)
    job.write_facts(result)
    return result


_FINAL_RUNS = 3
"""Fresh processes in which the result must pass, unless --repeat is given."""

_MOST_ROUNDS = 4
"""Searches, each remembering more answers, while the result is flaky."""

_MOST_KEPT = 4
"""Models kept in memory besides those that may be checked next."""


class PrecisionTask:
    """The task of a search over precisions, for ``CheckedSearch``: a passing model with fewer high layers is better.

    ``best`` are the high layers of the best model so far; None until the model with every layer high has passed.
    """

    def __init__(
        self,
        index: ModelIndex,
        models: MixedModels,
        oracle: Oracle,
        flakiness: Flakiness,
        place: Workspace,
        job: PrecisionJob,
    ) -> None:
        self._index = index
        self._models = models
        self._trials: dict[frozenset[int], Trial] = {}
        self._oracle = oracle
        self._flakiness = flakiness
        self._place = place
        self._job = job
        self._is_minimal = False
        self._verified = 0
        self._rounds = 0
        self.best: tuple[int, ...] | None = None
        self.result_file = ResultFile(job.files, self.write, oracle.listener)
        self._set_best(None)

    @property
    def has_result(self) -> bool:
        """Whether the model is known to pass with every layer high."""
        return self.best is not None

    is_worth_resuming = has_result

    @property
    def progress(self) -> str:
        """The number of high layers, in words."""
        if self.best is None:
            return "before both ends were checked; nothing was written"
        return f"{len(self.best)} of {len(self._all_layers)} layers are high so far"

    @property
    def _all_layers(self) -> tuple[int, ...]:
        return tuple(layer.number for layer in self._models.layers)

    def _set_best(self, best: tuple[int, ...] | None, *, is_minimal: bool = False) -> None:
        self.best, self._is_minimal = best, is_minimal
        self._oracle.left = len(self._all_layers if best is None else best)

    def preflight(self) -> None:
        """Every layer high must pass, every layer low should fail."""
        oracle = self._oracle
        with oracle.budget.enforced():
            high = self._trial(self._all_layers, HIGH, "every layer high")
            low = self._trial((), LOW, "every layer low")
            oracle.ahead(iter([high, low]))
            judged = self._check_end(high)
            if judged.outcome is not Outcome.PASSES:
                line = oracle.check.line(self._index.path or self._place.candidate)
                if judged.outcome is Outcome.INVALID:
                    raise errors.CheckError(
                        f"the check cannot say whether the model passes with every layer high: {judged.reason}",
                        next_steps=[line],
                    )
                raise errors.HighPrecisionFails(
                    f"the check fails even with every layer in {self._models.high_name} ({judged.reason}), "
                    "so no choice of layers can pass",
                    details=[f"  tried   {line}"],
                    next_steps=[
                        "run that line by hand; if it should pass, look at its inputs, golden values and tolerances",
                        "if the model itself is wrong: biopsy debug reduce",
                    ],
                )
            oracle.check.expect(judged.evidence.seconds)
            self._set_best(self._all_layers)
            judged = self._check_end(low)
            if judged.outcome is Outcome.PASSES:
                self._set_best((), is_minimal=True)
            elif judged.outcome is Outcome.REPRODUCES:
                self._flakiness.begin(low, 1)

    def _check_end(self, trial: Trial) -> Judged:
        judged = self._oracle.judge(trial)
        outcome, seconds = _outcome_word(judged.outcome), judged.evidence.seconds
        self._oracle.listener(events.EndChecked(trial.stage.name, outcome, judged.reason, seconds))
        return judged

    def begin(self) -> None:
        """Nothing to prepare."""

    def search(self) -> bool:
        """Search once; returns False if the result is flaky, so that another search is needed."""
        if self.best:
            with self._oracle.budget.enforced():
                self._run_search()
        if self._is_flaky():
            self._set_best(self._all_layers)
            self._rounds += 1
            return self._rounds == _MOST_ROUNDS
        trial = self._best_trial(CONFIRM, "the result: so far only the journal says that it passes")
        try:
            require_confirmed(self._oracle, trial, Outcome.PASSES, "the result passes", "the journal, as it is")
        except errors.CheckError:
            self._set_best(self._all_layers)  # do not write a result that was not confirmed
            raise
        return True

    def undo(self, digest: bytes | None) -> bool:
        """Restart the search; all other answers are remembered."""
        self._set_best(None)
        self._rounds = 0
        return True

    def _run_search(self) -> None:
        job, oracle = self._job, self._oracle
        started, checks, before = time.monotonic(), oracle.tally.checks, oracle.left
        oracle.listener(events.StageStarted(job.mode, before, usual_checks(before, job.mode)))
        answers: list[PrecisionProposal | None] = []

        def passes(proposal: PrecisionProposal) -> bool:
            trial = self._trial_of(proposal)
            meanwhile = None
            if oracle.jobs > 1 and oracle.memory.conclusion(trial) is None:
                meanwhile = partial(self._look_ahead, trial, tuple(answers))
                meanwhile()
            passed = oracle.judge(trial, meanwhile=meanwhile).outcome is Outcome.PASSES
            if passed and len(proposal.high) < oracle.left:
                self._set_best(proposal.high)
            answers.append(proposal if passed else None)
            return passed

        drive(self._new_search(), first_that(passes))
        oracle.pool.abandon_all()
        self._is_minimal = job.mode == "minimal"
        taken = oracle.tally.checks - checks
        oracle.listener(
            events.PassDone(
                stage=job.mode, checks=taken, seconds=time.monotonic() - started, before=before, after=oracle.left
            )
        )

    def _new_search(self) -> LayerSearch:
        job = self._job
        return search_of(self._models.layers, job.mode, job.direction, job.cost)

    def _look_ahead(self, current: Trial, answers: Sequence[PrecisionProposal | None]) -> None:
        """Begin checks that may follow after some answers, unless the ``current`` one has ended."""
        if self._oracle.has_ended(current):
            return
        likely = islice(foresee_any(self._new_search, answers, self._chance), self._oracle.jobs)
        self._oracle.keep_going([current, *map(self._trial_of, likely)])

    def _chance(self, proposal: PrecisionProposal) -> float:
        """The probability that a choice of layers passes: 0.5, unless an early check has the answer."""
        trial = self._trials.get(frozenset(proposal.high))
        judged = None if trial is None else self._oracle.foretold(trial)
        return 0.5 if judged is None else float(judged.outcome is Outcome.PASSES)

    def _trial(self, high: Sequence[int], stage: Stage, description: str) -> Trial:
        """A trial of the model with these layers high; the latest models are kept in memory."""
        layers = frozenset(high)
        trial = self._trials.pop(layers, None)
        if trial is None or (trial.stage, trial.description) != (stage, description):
            parts = trial.parts if trial is not None else self._models.parts(layers)
            trial = Trial(parts=parts, size=len(layers), stage=stage, description=description)
        self._trials[layers] = trial
        while len(self._trials) > _MOST_KEPT + 2 * self._oracle.jobs:
            del self._trials[next(iter(self._trials))]
        return trial

    def _trial_of(self, proposal: PrecisionProposal) -> Trial:
        return self._trial(proposal.high, Stage(self._job.mode), proposal.description)

    def _best_trial(self, stage: Stage, description: str) -> Trial:
        assert self.best is not None
        return self._trial(self.best, stage, description)

    def _is_flaky(self) -> bool:
        """Check the result again; True if it fails now, so that it may have passed by luck before."""
        oracle = self._oracle
        if self._job.search.repeating.repeat is not None or not oracle.check.automatic or self.best == self._all_layers:
            return False
        trial = self._best_trial(CONFIRM, "the fewest so far once more")
        for done in range(_FINAL_RUNS - 1):
            if oracle.again(trial, _FINAL_RUNS - 1 - done).outcome is not Outcome.PASSES:
                if oracle.memory.repetitions == 1:
                    self._flakiness.noticed_late(trial, done + 2)
                return True
        return False

    def write(self) -> None:
        """Write the best model, if there is an output file."""
        assert self.best is not None
        job = self._job
        if job.output is not None:
            folder, parts = self._place.candidate.parent, self._models.parts(frozenset(self.best))
            write_result(parts, job.output, folder, job.external, self._index.has_external_data)

    def rescue(self) -> str | None:
        """Write the best model so far and its report, unless every layer is high; returns what was written."""
        if self.best is None or self.best == self._all_layers:
            return None
        job, kept = self._job, list[str]()
        seconds = self._oracle.budget.seconds_spent
        with contextlib.suppress(errors.BiopsyError, OSError):  # another error is being reported
            self.write()
            kept += [f"{job.output}, which passes"] if job.output is not None else []
        with contextlib.suppress(errors.BiopsyError, OSError):
            job.write_facts(self.result(seconds, "an interruption or error"))
            kept += [f"{path}, with what is known so far" for path in filter(None, (job.names, job.report))]
        return "; ".join(kept) or None

    def verify(self) -> bool:
        """Require the result to be valid, and the written file to pass in fresh processes."""
        assert self.best is not None
        oracle, output = self._oracle, self._job.output
        require_valid(self._models.parts(frozenset(self.best)), [bytes(self._index.buffer)], output)
        if not oracle.check.automatic:
            return False
        oracle.pool.use(oracle.check.cold())
        runs = self._job.search.repeating.repeat or max(_FINAL_RUNS, oracle.memory.repetitions)
        final = self._best_trial(FINAL, "the result")
        machines = []
        with trials_of_file(output, final, oracle.check, self.result_file.restore) as fresh:
            for done in range(runs):
                judged = oracle.again(fresh(), 1)
                if judged.outcome is not Outcome.PASSES:
                    raise errors.CheckError(
                        f"the result does not pass when it is checked again ({_outcome_word(judged.outcome)}: "
                        f"{judged.reason}; it passed {done} times before): the check does not always say the same",
                        kept=f"{output}, which passed before" if output else None,
                        next_steps=["--repeat N    a model passes only if it passes N times"],
                    )
                machines.append(judged.evidence.machine)
        self._verified = runs
        machine = " and ".join(dict.fromkeys(filter(None, machines)))
        oracle.listener(events.Verified(str(output or "the mixed model"), 0, runs, machine))
        return False

    def result(self, seconds: float, stopped: str | None) -> PrecisionResult:
        """The result, once the search has ended."""
        assert self.best is not None
        job, models, high = self._job, self._models, frozenset(self.best)
        outcomes = self._oracle.tally.outcomes
        return PrecisionResult(
            model=str(self._index.path or "model"),
            low=models.low_name,
            precision=models.high_name,
            form=models.form,
            mode=job.mode,
            direction=job.direction,
            cost=job.cost,
            layers=len(self._all_layers),
            high=tuple(layer for layer in models.layers if layer.number in high),
            one_minimal=self._is_minimal and stopped is None,
            outcomes={_outcome_word(outcome): number for outcome, number in outcomes.items() if number},
            seconds=seconds,
            verified=self._verified,
            output=job.output,
            stopped=stopped,
            range_loss=models.range_loss(high),
            stays=models.stays,
            passive=models.passive,
            remembered=self._oracle.tally.remembered,
        )


def _outcome_word(outcome: Outcome) -> str:
    """The word for an outcome. There is no first failure to reproduce, so any failure is "failed"."""
    return "failed" if outcome is Outcome.REPRODUCES else outcome.value


_MOST_BYTES = 2**31 - 1
"""The largest model that onnx.checker takes."""


def require_valid(result: Sequence[bytes], original: Sequence[bytes], written: Path | None) -> None:
    """Raise CheckError if onnx.checker accepts the original and refuses the result. Both are models in pieces."""
    refused = objection(result)
    if refused is not None and objection(original) is None:
        raise errors.CheckError(
            f"the result passes the check, but onnx.checker refuses it, and accepts the original: {refused}",
            kept=f"{written}, which is not verified" if written is not None else None,
            next_steps=["report this with the model: what is written must be as valid as what it is made from"],
        )


def objection(parts: Sequence[bytes]) -> str | None:
    """Why onnx.checker refuses a model, in one line; None if it accepts it or the model is too large.

    External weights are ignored.
    """
    return None if sum(map(len, parts)) > _MOST_BYTES else checker_objection(judged_form(parse(b"".join(parts), None)))
