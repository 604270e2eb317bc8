"""What a pass over nodes will probably have checked next, so that checks can begin before they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.named_pass import NamedPass
from biopsy.reduction.pace import Pace
from biopsy.reduction.pass_context import PassContext
from biopsy.search.lookahead import Foreseeable, Future, Odds, likely_questions
from biopsy.search.rounds import Round
from biopsy.session.oracle import Oracle
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial

PassFuture: TypeAlias = Future[Proposal, Candidate, Proposal]


class Candidates(Protocol):
    """What is known of candidates: see ``Driver``."""

    oracle: Oracle
    pace: Pace

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """What of a proposal is worth a check."""

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known."""

    def trial(self, proposal: Proposal, stage: Stage) -> Trial:
        """A candidate as a model to be checked."""


def foreseeable(
    named: NamedPass,
    context: PassContext,
    start: Candidate,
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Foreseeable[Proposal, Candidate, Proposal]:
    """A pass that begins at a candidate: what it asks about is closed, and worth a check."""

    def questions(
        proposals: Round[Proposal], answers: Sequence[Candidate | None]
    ) -> Generator[Proposal, None, Candidate | None]:
        target = next(filter(None, reversed(answers)), start)
        for proposal in proposals:
            closed = eligible(proposal, target)
            if closed == [target]:
                return target
            for candidate in closed:
                yield Proposal(candidate, proposal.description)
        return None

    return Foreseeable(
        begin=lambda: named.search(context, start), questions=questions, held=lambda proposal: proposal.candidate
    )


class Lookahead:
    """Keeps the checks going that a pass will most probably ask for.

    ``answers`` are those to its rounds, ``odds`` what its candidates have come to; who runs the pass adds to both.
    """

    def __init__(self, candidates: Candidates, named: NamedPass, context: PassContext, start: Candidate) -> None:
        self._candidates = candidates
        self._named = named
        self._search = foreseeable(named, context, start, candidates.eligible)
        self._future: PassFuture = Future(self._search)
        self.answers: list[Candidate | None] = []
        self.odds = Odds()
        self._trials: dict[Candidate, Trial] = {}

    def begin(self, asked: Candidate, trial: Trial) -> bool:
        """Begin the check of what is asked about, and of what may come after it, as many as may run at once.

        What runs already goes on if it may still be asked for. If the answer is there, nothing more is begun before it
        is heard. False, and nothing is begun, if nothing is worth checking beside what is asked about.
        """
        oracle, pace = self._candidates.oracle, self._candidates.pace
        if oracle.has_ended(trial):
            return True
        most = pace.at_once(oracle.jobs, 0.5 if self._named.halves else self.odds.likeliest)
        if most == 1:
            oracle.abandon_all(but=[trial])
            return False
        started = time.thread_time()
        future = self._at(asked, self._future) or self._at(asked, Future(self._search, self.answers))
        if future is None:
            return True
        self._future = future
        before = {**self._trials, asked: trial}
        likely = islice(likely_questions(future, self._chance, least=pace.least_chance), most)
        soon = {
            proposal.candidate: before.get(proposal.candidate) or self._candidates.trial(proposal, self._stage)
            for proposal in likely
        }
        pace.looked_ahead(time.thread_time() - started, len(soon.keys() - before.keys()))
        oracle.keep_going([trial, *soon.values()])
        pending = oracle.pending
        self._trials = {candidate: one for candidate, one in {**before, **soon}.items() if one.digest in pending}
        return True

    @property
    def _stage(self) -> Stage:
        return Stage(self._named.name)

    def _at(self, asked: Candidate, future: PassFuture) -> PassFuture | None:
        """Where a candidate is asked about, if what is known leads there."""
        while (question := future.question) is not None and question.candidate != asked:
            known = self._candidates.known(question.candidate)
            if known is None:
                return None
            future = future.behind(known)
        return None if question is None else future

    def _chance(self, proposal: Proposal) -> float:
        """How likely a candidate reproduces: known, even for a pass that halves, else as those before."""
        known = self._candidates.known(proposal.candidate)
        begun = self._trials.get(proposal.candidate)
        if known is None and begun is not None:
            known = self._candidates.oracle.foretold(begun)
        if known is not None:
            return float(known)
        return 0.5 if self._named.halves else self.odds.chance
