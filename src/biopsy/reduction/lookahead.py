"""What will probably be checked next, so that checks can begin before they are asked for, as far ahead as is worth
the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias

from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.pace import Pace
from biopsy.reduction.passes.contract import NamedPass, NotFoundOutError, PassContext
from biopsy.search.drive import Foreseeable, Future, Odds, Round, RunningSearch, Search, likely_questions
from biopsy.search.scouting import FEWEST, Part, Scouting
from biopsy.session.oracle import Oracle
from biopsy.session.trial import Stage, Trial

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
    """A sequence of passes from a candidate on, as a search to foresee; its questions are closed, worth a check."""
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
    """Keeps those checks running that a pass will most probably ask for.

    ``answers`` are the answers to its rounds so far; whoever runs the pass appends to it. ``then`` are the passes that
    will follow.
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
        self._scouts: Scouts | None = None
        if named.leaves_out and candidates.oracle.jobs > FEWEST:
            needed = candidates.missed(start)  # what was found to be needed before is not tried again
            order = [node for node in context.problem.order(start) if node not in needed]
            self._scouts = Scouts(candidates, start, Scouting(order, sorted(needed)), Stage(named.name))

    def heard(self, candidate: Candidate, *, reproduces: bool) -> None:
        """Take into account whether a candidate reproduces."""
        self._odds.add(held=reproduces)
        if self._scouts is not None:
            self._scouts.heard(candidate, reproduces=reproduces)

    def begin(self, asked: Candidate, trial: Trial) -> bool:
        """Begin the check of a candidate, and of those that may be asked about next, as many as may run at once.

        Checks that run already go on if they may still be asked for. If the answer is there already, nothing more is
        begun before it is heard. False, and nothing is begun, if no other check is worth its time.
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
        likely = islice(likely_questions(future, self._chance, least=pace.least_chance), most - len(scouts))
        soon = {
            proposal.candidate: before.get(proposal.candidate)
            or self._candidates.trial(proposal, Stage(proposal.named.name))
            for proposal in likely
        }
        pace.looked_ahead(time.thread_time() - started, len(soon.keys() - before.keys()))
        oracle.keep_going([trial, *soon.values(), *scouts])
        pending = oracle.pending
        self._trials = {candidate: begun for candidate, begun in {**before, **soon}.items() if begun.digest in pending}
        return True

    def _scouting(self, future: PassFuture, most: int) -> list[Trial]:
        """Scouts, as many as may run besides the checks that are likely enough to be asked for."""
        if self._scouts is None:
            return []
        least = max(_HARDLY, self._candidates.pace.least_chance)
        room = most - sum(1 for _ in islice(likely_questions(future, self._chance, least=least), most))
        return self._scouts.trials(room) if room else []

    def _at(self, asked: Candidate, future: PassFuture) -> PassFuture | None:
        """The future in which a candidate is asked about, if answers that are known lead there."""
        while (question := future.question) is not None and question.candidate != asked:
            known = self._candidates.known(question.candidate)
            if known is None:
                return None
            future = future.behind(known)
        return None if question is None else future

    def _chance(self, proposal: Foreseen) -> float:
        """How likely a candidate reproduces: 0 or 1 if that is known, a scout's guess, or as often as those before."""
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


class Candidates(Protocol):
    """What looking ahead needs of the driver, which imports this module: see ``Driver``."""

    oracle: Oracle
    pace: Pace

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """The candidates of a proposal that are worth a check."""

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known."""

    def missed(self, target: Candidate) -> frozenset[int]:
        """The nodes of a target that were the only ones missing in a candidate that did not reproduce."""

    def trial(self, proposal: Proposal, stage: Stage) -> Trial:
        """A candidate as a model to be checked."""


_SURE = 0.98
"""The most that a guess is believed."""


class Scouts:
    """Guesses the answers that a pass will get, by checks of its target without disjoint parts of its nodes.

    They run only where a process would be idle otherwise. Their outcomes are never counted or remembered, and no search
    goes on from them: the result is the same without them.
    """

    def __init__(self, candidates: Candidates, start: Candidate, scouting: Scouting[int], stage: Stage) -> None:
        self._candidates = candidates
        self._target = start
        self._scouting = scouting
        self._stage = stage
        self._begun: dict[Part[int], Trial] = {}

    def chance(self, candidate: Candidate) -> float | None:
        """How likely a candidate reproduces, None where that cannot be guessed."""
        guess = self._guess(candidate)
        if guess is None:
            return None
        trust = min(_SURE, self._scouting.trust)
        return trust if guess else 1 - trust

    def heard(self, candidate: Candidate, *, reproduces: bool) -> None:
        """Take into account whether a candidate of the pass reproduces."""
        guess = self._guess(candidate)
        if guess is not None:
            self._scouting.came_true(right=guess is reproduces)
        if reproduces:
            self._learn()
            self._target = candidate
            self._scouting.restrict(set(candidate.nodes))

    def trials(self, most: int) -> list[Trial]:
        """At most so many models to be checked, of which some may be under way."""
        if self._scouting.trust == 0.5:
            return []
        self._learn()
        trials: dict[Part[int], Trial] = {}
        for part in self._scouting.parts(most):
            if part in self._begun:
                trials[part] = self._begun[part]
                continue
            description = f"without {len(part.items)} of {self._target.size} nodes, ahead"
            without = self._candidates.eligible(Proposal(self._target.without(part.items), description), self._target)
            if not without or without[0] == self._target:
                self._scouting.learn(part, is_needed=True)  # it always comes back
                continue
            known = self._candidates.known(without[0])
            if known is None:
                trials[part] = self._candidates.trial(Proposal(without[0], description), self._stage)
            else:
                self._scouting.learn(part, is_needed=not known)
        self._begun = trials
        return list(trials.values())

    def _guess(self, candidate: Candidate) -> bool | None:
        return None if candidate.bypassed != self._target.bypassed else self._scouting.guess(frozenset(candidate.nodes))

    def _learn(self) -> None:
        for part, trial in self._begun.items():
            judged = self._candidates.oracle.foretold(trial)
            if judged is not None:
                self._scouting.learn(part, is_needed=judged.outcome is not Outcome.REPRODUCES)
