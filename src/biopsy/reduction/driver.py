"""The driver: has what passes propose checked, and keeps the smallest candidate that reproduces."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.checks.outcome import Check, Judged, Outcome
from biopsy.model.index import label
from biopsy.model.load import parse
from biopsy.model.slice import Boundary, candidate_parts
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.change import Change, NamedModelPass
from biopsy.reduction.course import course
from biopsy.reduction.feeding import Feeding
from biopsy.reduction.named_pass import NamedPass
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.passes.shapes import unrefuted
from biopsy.reduction.problem import Problem
from biopsy.search.drive import RunningSearch, drive
from biopsy.search.rounds import Round
from biopsy.session.trials import Trial, Trials
from biopsy.session.workspace import Workspace

if TYPE_CHECKING:
    import onnx

    from biopsy.checks.signature import Signature
    from biopsy.comparison.mismatch import ErrorSize


class Driver:
    """Runs passes on one problem, and has trials made of what they propose."""

    def __init__(
        self, problem: Problem, trials: Trials, workspace: Workspace, listener: events.Listener, feeding: Feeding
    ) -> None:
        self.problem = problem
        self.feeding = feeding
        self.inputs: Path | None = None
        self.trials = trials
        self.workspace = workspace
        self.listener = listener
        self.refined: onnx.ModelProto | None = None
        self.best: Candidate | None = None
        self.saved = False  # whether a result of this search stands on disk
        self.allow_vacuous = False  # whether a check may fail on anything
        self.last_words: tuple[str, str] | None = None
        self.error_before: ErrorSize | None = None
        self.error_after: ErrorSize | None = None
        self._passing: dict[Candidate, None] = {}
        self._known: dict[Candidate, tuple[Judged, bytes]] = {}
        self._last_reproduced = False
        trials.left = len(problem.index.nodes)

    @property
    def check(self) -> Check:
        """The check as it is asked now."""
        return self.trials.check

    @property
    def reference(self) -> Signature | None:
        """The signature of the original's failure; None while it is not known."""
        return self.trials.reference

    @property
    def passing(self) -> list[Candidate]:
        """Candidates that passed, in the order in which they were asked about."""
        return list(self._passing)

    def search(self, named: NamedPass, target: Candidate, context: PassContext) -> Candidate:
        """Run one pass to its end; returns the smallest candidate that reproduced, ``target`` if none did."""
        started, checks = time.monotonic(), self.trials.tally.checks
        self.listener(events.StageStarted(named.name, target.size, named.usual(target.size)))
        before = target
        answers: list[Candidate | None] = []
        ahead = _Ahead(self, named, context, before, answers)

        def answer(proposals: Round[Proposal]) -> Candidate | None:
            nonlocal target
            reproducing = self._first_that_reproduces(proposals, target, named.name, ahead)
            answers.append(reproducing)
            target = reproducing or target
            return reproducing

        drive(named.search(context, target), answer)
        self.trials.abandon_all()
        taken = self.trials.tally.checks - checks
        self.listener(events.StageDone(named.name, before.size, target.size, taken, time.monotonic() - started))
        return target

    def refine(self, named: NamedModelPass, context: PassContext) -> None:
        """Run one pass over the model itself to its end; ``refined`` is then the simplest that reproduced.

        Whether values may change is asked, which can cost checks, only if the pass has something to propose.
        """
        started, checks, before = time.monotonic(), self.trials.tally.checks, self.left
        search = RunningSearch(named.search(self.best_model()))
        if search.round is None or not (named.keeps_values or context.may_change_values):
            return
        self.listener(events.StageStarted(named.name, before, 0))
        search.run(lambda changes: self._first_change_that_reproduces(changes, named.name))
        taken = self.trials.tally.checks - checks
        if taken:
            self.listener(events.StageDone(named.name, before, self.left, taken, time.monotonic() - started))

    def _first_change_that_reproduces(self, changes: Iterable[Change], stage: str) -> onnx.ModelProto | None:
        current = self.best_trial("", "").digest
        waiting = unrefuted(self.best_model(), changes)
        window: list[tuple[Change, Trial]] = []
        while True:
            for change in islice(waiting, self.trials.jobs - len(window)):
                parts = [change.model.SerializeToString(deterministic=True)]
                window.append((change, Trial(parts, len(change.model.graph.node), stage, change.description)))
            if not window:
                return None
            change, trial = window.pop(0)
            if trial.digest == current:
                return change.model
            if self.trials.jobs > 1:
                self.trials.ahead(iter([trial, *(other for _, other in window if other.digest != current)]))
            if self.trials.judge(trial).outcome is Outcome.REPRODUCES:
                self.refined = change.model
                self.trials.abandon_all()
                return change.model

    @property
    def is_smaller(self) -> bool:
        """Whether anything simpler than the original is known to reproduce."""
        return self.refined is not None or self.best not in (None, self.problem.whole)

    @property
    def left(self) -> int:
        """Nodes of the best model so far."""
        if self.refined is not None:
            return len(self.refined.graph.node)
        return self.best.size if self.best else len(self.problem.index.nodes)

    def parts(self, candidate: Candidate) -> list[bytes]:
        """A candidate as bytes, its external weights referred to from the folder where candidates stand."""
        return candidate_parts(self.problem.subset(candidate), self.boundary(candidate))

    def best_parts(self) -> list[bytes]:
        """The best model so far as bytes, as it was checked."""
        if self.refined is not None:
            return [self.refined.SerializeToString(deterministic=True)]
        assert self.best is not None
        return self.parts(self.best)

    def best_trial(self, stage: str, description: str) -> Trial:
        """The best model so far, to be checked once more."""
        return Trial(self.best_parts(), self.left, stage, description)

    def best_model(self) -> onnx.ModelProto:
        """The best model so far as a protobuf object, external weights not loaded."""
        return self.refined if self.refined is not None else parse(b"".join(self.best_parts()), None)

    def labels(self) -> tuple[str, ...]:
        """The nodes of the best model so far, by operator and name, in order."""
        if self.refined is not None:
            return tuple(label(node.op_type, node.name, number) for number, node in enumerate(self.refined.graph.node))
        assert self.best is not None
        return tuple(self.problem.index.nodes[number].label for number in self.best.nodes)

    def _first_that_reproduces(
        self, proposals: Round[Proposal], target: Candidate, stage: str, ahead: _Ahead
    ) -> Candidate | None:
        for proposal in proposals:
            found = self.eligible(proposal, target)
            if found == [target]:
                return target  # nothing can be left out of what was proposed: the answer is known
            for candidate in found:
                judged = self.judge_candidate(Proposal(candidate, proposal.description), stage, ahead)
                self._last_reproduced = judged.outcome is Outcome.REPRODUCES
                if self._last_reproduced:
                    self.best = candidate
                    return candidate
        return None

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """What of a proposal is worth a check: closed, once for each sample; ``target`` alone if it comes to that."""
        candidate = self.problem.closed(proposal.candidate)
        if candidate == target:
            return [target]
        if candidate is None or candidate.size >= target.size:
            return []
        return self.problem.samples_of(candidate)

    def trial(self, proposal: Proposal, stage: str) -> Trial:
        """A closed candidate as a model to be checked."""
        return Trial(self.parts(proposal.candidate), proposal.candidate.size, stage, proposal.description)

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known already."""
        found = self._known.get(candidate)
        return None if found is None else found[0].outcome is Outcome.REPRODUCES

    def guess(self, candidate: Candidate) -> bool:
        """Whether a candidate will probably reproduce: as is known, else as the one before it did."""
        known = self.known(candidate)
        return self._last_reproduced if known is None else known

    def judge_candidate(self, proposal: Proposal, stage: str, ahead: _Ahead | None = None) -> Judged:
        """The outcome of a candidate that is closed, from memory if it was checked before."""
        candidate = proposal.candidate
        known = self._known.get(candidate)
        if known is not None:
            return known[0]
        trial = self.trial(proposal, stage)
        if ahead is not None and self.trials.jobs > 1 and not self.trials.is_known(trial):
            ahead.begin(candidate, trial)
        judged = self.trials.judge(trial)
        self._known[candidate] = judged, trial.digest
        if judged.outcome is Outcome.PASSES:
            self._passing[candidate] = None
        return judged

    def boundary(self, candidate: Candidate) -> Boundary:
        """The border of a candidate, its weights referred to from where candidates stand."""
        return replace(self.problem.boundary(candidate), places=self.workspace.places)

    def original(self, stage: str, description: str, boundary: Boundary | None = None) -> Trial:
        """The original as a model to be checked, with another border if one is given."""
        whole = self.problem.whole
        parts = candidate_parts(self.problem.subset(whole), boundary or self.boundary(whole))
        return Trial(parts, whole.size, stage, description)

    def doubt(self) -> None:
        """Believe no answer any more but those that reproduced: the failure is flaky, and that was not known."""
        self._known = {
            candidate: (judged, digest)
            for candidate, (judged, digest) in self._known.items()
            if judged.outcome is Outcome.REPRODUCES
        }
        self._passing.clear()

    def take_back(self) -> bytes | None:
        """Forget the newest answer of the person who is asked; returns of which model it was, None if there is none."""
        digest = self.trials.take_back()
        if digest is None:
            self.listener(events.Remark("there is no answer to take back"))
        for candidate in [candidate for candidate, (_, known) in self._known.items() if known == digest]:
            del self._known[candidate]
            self._passing.pop(candidate, None)
        return digest


class _Ahead:
    """Keeps the checks going that a pass will probably ask for next."""

    def __init__(
        self,
        driver: Driver,
        named: NamedPass,
        context: PassContext,
        start: Candidate,
        answers: Sequence[Candidate | None],
    ) -> None:
        self._driver = driver
        self._named = named
        self._context = context
        self._start = start
        self._answers = answers
        self._expected: Iterator[Proposal] = iter(())
        self._foreseen: deque[Candidate] = deque()
        self._guessed: dict[Candidate, bool] = {}

    def begin(self, asked: Candidate, trial: Trial) -> None:
        """Begin the check of what is asked about, and of what comes after it, as many as may run at once."""
        trials = self._driver.trials
        if self._came_true(asked):
            trials.ahead(self._trials(asked, trial))
            return
        self._foreseen.clear()
        self._expected = course(
            self._context, self._named.search, self._start, self._answers, self._guess, self._driver.eligible
        )
        soon = list(islice(self._trials(asked, trial), trials.jobs))
        trials.abandon_all(but=soon)
        trials.ahead(iter(soon))

    def _came_true(self, asked: Candidate) -> bool:
        """Whether this was foreseen, and every guess before it was right."""
        while self._foreseen and self._foreseen[0] != asked:
            candidate = self._foreseen.popleft()
            if self._driver.known(candidate) is not self._guessed.get(candidate):
                return False
        return bool(self._foreseen)

    def _guess(self, candidate: Candidate) -> bool:
        self._guessed[candidate] = guessed = self._driver.guess(candidate)
        return guessed

    def _trials(self, asked: Candidate, trial: Trial) -> Iterator[Trial]:
        for proposal in self._expected:
            candidate = proposal.candidate
            if self._driver.known(candidate) is None:
                self._foreseen.append(candidate)
                yield trial if candidate == asked else self._driver.trial(proposal, self._named.name)
