"""What a pass over nodes will probably have checked next, so that checks can begin before they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.candidates import Candidates
from biopsy.reduction.named_pass import NamedPass
from biopsy.reduction.pass_context import NotFoundOutError, PassContext
from biopsy.reduction.scouts import Scouts
from biopsy.search.drive import RunningSearch
from biopsy.search.lookahead import Foreseeable, Future, Odds, likely_questions
from biopsy.search.rounds import Round, Search
from biopsy.search.scouting import FEWEST, Scouting
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial

_HARDLY = 1 / 16
"""How likely a question is asked, at most, that a scout is worth more than: four even chances in a row."""


_MOST_NODES = 256
"""Nodes of a target from which a pass is begun on a guess: to put more of them in order takes too long."""


@dataclass(frozen=True)
class Foreseen(Proposal):
    """A candidate that a pass may ask about."""

    named: NamedPass


PassFuture: TypeAlias = Future[Proposal, Candidate, Foreseen]


class _RoundOf(Iterable[Proposal]):
    """A round of a pass."""

    def __init__(self, named: NamedPass, proposals: Round[Proposal]) -> None:
        self.named = named
        self._proposals = proposals

    def __iter__(self) -> Iterator[Proposal]:
        return iter(self._proposals)


def foreseeable(
    passes: Sequence[NamedPass],
    context: PassContext,
    start: Candidate,
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Foreseeable[Proposal, Candidate, Foreseen]:
    """Passes that follow each other, from a candidate on: what they ask about is closed, and worth a check."""
    later = context.for_guesses()

    def begin() -> Search[Proposal, Candidate, None]:
        target = start
        for number, named in enumerate(passes):
            if number and not 1 < target.size <= _MOST_NODES:
                return
            try:
                running = RunningSearch(named.search(later if number else context, target))
                while running.round is not None:
                    answer = yield _RoundOf(named, running.round)
                    target = answer or target
                    running.reply(answer)
            except NotFoundOutError:
                return

    def questions(
        proposals: Round[Proposal], answers: Sequence[Candidate | None]
    ) -> Generator[Foreseen, None, Candidate | None]:
        assert isinstance(proposals, _RoundOf)
        target = next(filter(None, reversed(answers)), start)
        for proposal in proposals:
            closed = eligible(proposal, target)
            if closed == [target]:
                return target
            for candidate in closed:
                yield Foreseen(candidate, proposal.description, proposals.named)
        return None

    return Foreseeable(begin=begin, questions=questions, held=lambda proposal: proposal.candidate)


class Lookahead:
    """Keeps the checks going that a pass will most probably ask for.

    ``answers`` are those to its rounds, to which who runs the pass adds. ``then`` are passes that will follow.
    """

    def __init__(
        self,
        candidates: Candidates,
        named: NamedPass,
        context: PassContext,
        start: Candidate,
        then: Sequence[NamedPass] = (),
    ) -> None:
        self._candidates = candidates
        self._named = named
        self._search = foreseeable((named, *then), context, start, candidates.eligible)
        self._future: PassFuture = Future(self._search)
        self.answers: list[Candidate | None] = []
        self._odds = Odds()
        self._trials: dict[Candidate, Trial] = {}
        scouts_fit = named.leaves_out and candidates.oracle.jobs > FEWEST
        self._scouts = scouts_of(candidates, context, start, self._stage) if scouts_fit else None

    def heard(self, candidate: Candidate, *, reproduces: bool) -> None:
        """Take into account what a candidate has come to."""
        self._odds.add(held=reproduces)
        if self._scouts is not None:
            self._scouts.heard(candidate, reproduces=reproduces)

    def begin(self, asked: Candidate, trial: Trial) -> bool:
        """Begin the check of what is asked about, and of what may come after it, as many as may run at once.

        What runs already goes on if it may still be asked for. If the answer is there, nothing more is begun before it
        is heard. False, and nothing is begun, if nothing is worth checking beside what is asked about.
        """
        oracle, pace = self._candidates.oracle, self._candidates.pace
        if oracle.has_ended(trial):
            return True
        most = pace.at_once(oracle.jobs, 0.5 if self._named.halves else self._odds.likeliest)
        if most == 1:
            oracle.abandon_all(but=[trial])
            return False
        started = time.thread_time()
        future = self._at(asked, self._future) or self._at(asked, Future(self._search, self.answers))
        if future is None:
            return True
        self._future = future
        before = {**self._trials, asked: trial}
        scouts = self._scouting(future, most)
        likely = islice(self._likely(future, pace.least_chance), most - len(scouts))
        soon = {
            proposal.candidate: before.get(proposal.candidate)
            or self._candidates.trial(proposal, Stage(proposal.named.name))
            for proposal in likely
        }
        pace.looked_ahead(time.thread_time() - started, len(soon.keys() - before.keys()))
        oracle.keep_going([trial, *soon.values(), *scouts])
        pending = oracle.pending
        self._trials = {candidate: one for candidate, one in {**before, **soon}.items() if one.digest in pending}
        return True

    def _likely(self, future: PassFuture, least: float) -> Iterator[Foreseen]:
        return likely_questions(future, self._chance, least=least)

    def _scouting(self, future: PassFuture, most: int) -> list[Trial]:
        """Scouts, as many as may run beside what is not too unlikely to be asked."""
        least = max(_HARDLY, self._candidates.pace.least_chance)
        if self._scouts is None:
            return []
        room = most - sum(1 for _ in islice(self._likely(future, least), most))
        return self._scouts.trials(room) if room else []

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

    def _chance(self, proposal: Foreseen) -> float:
        """How likely a candidate reproduces: known, even for a pass that halves, else as those before."""
        known = self._candidates.known(proposal.candidate)
        begun = self._trials.get(proposal.candidate)
        if known is None and begun is not None and (judged := self._candidates.oracle.foretold(begun)) is not None:
            known = judged.outcome is Outcome.REPRODUCES
        if known is not None:
            return float(known)
        guessed = None if self._scouts is None else self._scouts.chance(proposal.candidate)
        if guessed is not None:
            return guessed
        return self._odds.chance if proposal.named is self._named and not self._named.halves else 0.5


def scouts_of(candidates: Candidates, context: PassContext, start: Candidate, stage: Stage) -> Scouts:
    """Scouts for a pass that begins at a candidate; what was found to be needed before is not tried again."""
    needed = candidates.missed(start)
    order = [node for node in context.problem.order(start) if node not in needed]
    return Scouts(candidates, start, Scouting(order, sorted(needed)), stage)
