"""The driver: has what passes propose checked, and keeps the smallest candidate that reproduces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.checks.judge import Signature
from biopsy.checks.outcome import Check, Judged, Outcome
from biopsy.model.index import label
from biopsy.model.load import parse
from biopsy.model.slice import Boundary, candidate_parts
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.lookahead import Lookahead
from biopsy.reduction.pace import Pace
from biopsy.reduction.passes.contract import Change, NamedModelPass, NamedPass, PassContext
from biopsy.reduction.passes.editing import unrefuted
from biopsy.reduction.problem import Problem
from biopsy.search.drive import Odds, Round, RunningSearch, drive
from biopsy.session.oracle import Oracle
from biopsy.session.trial import Stage, Trial
from biopsy.session.workspace import Workspace

if TYPE_CHECKING:
    import onnx


class Driver:
    """Runs passes on one problem, and asks the oracle about what they propose.

    ``best`` is the smallest candidate that reproduces, ``refined`` what passes over the model itself have made of it.
    """

    def __init__(self, problem: Problem, oracle: Oracle, workspace: Workspace) -> None:
        self.problem = problem
        self.oracle = oracle
        self.workspace = workspace
        self.listener = oracle.listener
        # A check that cannot be stopped may be an instant function: it is measured before many are begun.
        at_first = oracle.jobs if oracle.check.stoppable else 2
        self.pace = Pace(measured=not oracle.runs_elsewhere, at_first=at_first)
        self.refined: onnx.ModelProto | None = None
        self.best: Candidate | None = None
        self._passing: dict[Candidate, None] = {}
        self._known: dict[Candidate, tuple[Judged, bytes]] = {}
        oracle.left = len(problem.index.nodes)

    @property
    def check(self) -> Check:
        """The check as it is asked now."""
        return self.oracle.check

    @property
    def reference(self) -> Signature | None:
        """The signature of the original's failure; None while it is not known."""
        return self.oracle.failure.reference

    @property
    def passing(self) -> list[Candidate]:
        """Candidates that passed, in the order in which they were asked about."""
        return list(self._passing)

    def search(
        self, named: NamedPass, target: Candidate, context: PassContext, then: Sequence[NamedPass] = ()
    ) -> Candidate:
        """Run one pass to its end; returns the smallest candidate that reproduced, ``target`` if none did.

        ``then`` are passes that will follow: what they ask about may be checked before.
        """
        started, checks = time.monotonic(), self.oracle.tally.asked
        self.listener(events.StageStarted(named.name, target.size, named.usual(target.size)))
        before = target
        lookahead = Lookahead(self, named, context, before, then)

        def answer(proposals: Round[Proposal]) -> Candidate | None:
            nonlocal target
            reproducing = self._first_that_reproduces(proposals, target, Stage(named.name), lookahead)
            lookahead.answers.append(reproducing)
            target = reproducing or target
            return reproducing

        drive(named.search(context, target), answer)
        if target is not before:
            self.oracle.beside.settle()  # before it is told
        if not then:
            self.oracle.abandon_all()
        self._tell_done(named.name, before.size, target.size, checks, started)
        return target

    def refine(self, named: NamedModelPass, context: PassContext) -> None:
        """Run one pass over the model itself to its end; ``refined`` is then the simplest that reproduced.

        Whether values may change is asked, which can cost checks, only if the pass has something to propose.
        """
        started, checks, before = time.monotonic(), self.oracle.tally.asked, self.left
        search = RunningSearch(named.search(self.best_model()))
        if search.round is None or not (named.keeps_values or context.may_change_values):
            return
        self.listener(events.StageStarted(named.name, before, 0))
        odds = Odds()
        search.run(lambda changes: self._first_change_that_reproduces(changes, Stage(named.name), odds))
        if self.oracle.tally.asked > checks:
            self._tell_done(named.name, before, self.left, checks, started)

    def _tell_done(self, stage: str, before: int, after: int, checks: int, started: float) -> None:
        taken, seconds = self.oracle.tally.asked - checks, time.monotonic() - started
        self.listener(events.PassDone(stage=stage, checks=taken, seconds=seconds, before=before, after=after))

    def _first_change_that_reproduces(
        self, changes: Iterable[Change], stage: Stage, odds: Odds
    ) -> onnx.ModelProto | None:
        current = self.best_trial(stage, "").digest
        waiting = unrefuted(self.best_model(), changes)
        window: list[tuple[Change, Trial]] = []
        while True:
            started, many = time.thread_time(), self.pace.in_a_row(self.oracle.jobs, odds.chance)
            new = [
                (
                    change,
                    Trial(
                        parts=[change.model.SerializeToString(deterministic=True)],
                        size=len(change.model.graph.node),
                        stage=stage,
                        description=change.description,
                    ),
                )
                for change in islice(waiting, max(0, many - len(window)))
            ]
            self.pace.looked_ahead(time.thread_time() - started, len(new))
            window += new
            if not window:
                return None
            change, trial = window.pop(0)
            if trial.digest == current:
                return change.model
            if many > 1:
                self.oracle.ahead(iter([trial, *(other for _, other in window if other.digest != current)]))
            with self.pace.waiting():
                judged = self.oracle.judge(trial, alone=many == 1)
            reproduces = judged.outcome is Outcome.REPRODUCES
            odds.add(held=reproduces)
            if reproduces:
                self.refined = change.model
                self.oracle.abandon_all()
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

    def best_trial(self, stage: Stage, description: str) -> Trial:
        """The best model so far, to be checked once more."""
        return Trial(parts=self.best_parts(), size=self.left, stage=stage, description=description)

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
        self, proposals: Round[Proposal], target: Candidate, stage: Stage, lookahead: Lookahead
    ) -> Candidate | None:
        for proposal in proposals:
            candidates = self.eligible(proposal, target)
            if candidates == [target]:
                return target  # nothing can be left out of what was proposed: the answer is known
            for candidate in candidates:
                judged = self.judge_candidate(Proposal(candidate, proposal.description), stage, lookahead)
                reproduces = judged.outcome is Outcome.REPRODUCES
                lookahead.heard(candidate, reproduces=reproduces)
                if reproduces:
                    self.best = candidate
                    return candidate
        return None

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """The candidates of a proposal that are worth a check: closed, one for each sample.

        Only ``target`` if closing the proposal gives the target; none if it is no smaller.
        """
        candidate = self.problem.closed(proposal.candidate)
        if candidate == target:
            return [target]
        if candidate is None or candidate.size >= target.size:
            return []
        return self.problem.samples_of(candidate)

    def trial(self, proposal: Proposal, stage: Stage) -> Trial:
        """A closed candidate as a model to be checked."""
        candidate, problem = proposal.candidate, self.problem
        trial = Trial(parts=self.parts(candidate), size=candidate.size, stage=stage, description=proposal.description)
        if problem.feeds_vouched_only and problem.doubtful(candidate, fed=True):
            return replace(trial, inputs="vouched for")  # what was remembered of it was about other values
        return trial

    def missed(self, target: Candidate) -> frozenset[int]:
        """The nodes of a target that were the only ones missing in a candidate that did not reproduce."""
        kept = frozenset(target.nodes)
        lacking = (
            kept.difference(candidate.nodes)
            for candidate, (judged, _) in self._known.items()
            if judged.outcome is not Outcome.REPRODUCES and candidate.bypassed == target.bypassed
        )
        return frozenset(node for nodes in lacking if len(nodes) == 1 for node in nodes)

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known already."""
        found = self._known.get(candidate)
        return None if found is None else found[0].outcome is Outcome.REPRODUCES

    def judge_candidate(self, proposal: Proposal, stage: Stage, lookahead: Lookahead | None = None) -> Judged:
        """The outcome of a candidate that is closed, from memory if it was checked before."""
        candidate = proposal.candidate
        known = self._known.get(candidate)
        if known is not None:
            return known[0]
        trial = self.trial(proposal, stage)
        alone, meanwhile = False, None
        if lookahead is not None and self.oracle.jobs > 1 and not self.oracle.is_known(trial):
            alone = not lookahead.begin(candidate, trial)
            meanwhile = partial(lookahead.begin, candidate, trial) if self.pace.is_known and not alone else None
        with self.pace.waiting():
            judged = self.oracle.judge(trial, alone=alone, meanwhile=meanwhile)
        self._known[candidate] = judged, trial.digest
        if judged.outcome is Outcome.PASSES:
            self._passing[candidate] = None
        return judged

    def boundary(self, candidate: Candidate) -> Boundary:
        """The border of a candidate, its weights referred to from where candidates stand."""
        return replace(self.problem.boundary(candidate), places=self.workspace.places)

    def original(self, stage: Stage, description: str, boundary: Boundary | None = None) -> Trial:
        """The original as a model to be checked, with another border if one is given."""
        whole = self.problem.whole
        parts = candidate_parts(self.problem.subset(whole), boundary or self.boundary(whole))
        return Trial(parts=parts, size=whole.size, stage=stage, description=description)

    def marked(self, candidate: Candidate, stage: Stage, description: str) -> Trial:
        """A closed candidate with every tensor as an output, as a model to be checked."""
        boundary = replace(self.problem.everything_marked(candidate), places=self.workspace.places)
        parts = candidate_parts(self.problem.subset(candidate), boundary)
        return Trial(parts=parts, size=candidate.size, stage=stage, description=description)

    def start_over(self) -> None:
        """Make the whole original the best model again."""
        self.best, self.refined = self.problem.whole, None

    def go_back(self, ground: Candidate) -> None:
        """Make a candidate that reproduces the best again, and forget the answers about all others.

        A candidate of the same bytes as before is still answered from the oracle's memory.
        """
        self.best, self.refined = ground, None
        self._known.clear()
        self._passing.clear()

    def doubt(self) -> None:
        """Forget all answers but failures: the failure turned out to be flaky, so a pass proves nothing."""
        self._known = {
            candidate: (judged, digest)
            for candidate, (judged, digest) in self._known.items()
            if judged.outcome is Outcome.REPRODUCES
        }
        self._passing.clear()

    def forget(self, digest: bytes) -> None:
        """Forget what is known of the candidate with this digest: a person took the answer back."""
        for candidate in [candidate for candidate, (_, known) in self._known.items() if known == digest]:
            del self._known[candidate]
            self._passing.pop(candidate, None)
