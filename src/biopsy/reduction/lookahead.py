"""What will probably be checked next, so that checks can begin before they are asked for, as far ahead as is worth
the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate, Proposal
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


# What whoever looks ahead may ask of candidates.


class Candidates(Protocol):
    """What is known of candidates: see ``Driver``."""

    oracle: Oracle
    pace: Pace

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """What of a proposal is worth a check."""

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known."""

    def missed(self, target: Candidate) -> frozenset[int]:
        """Nodes of a target, each of which alone was missing in a candidate that did not reproduce."""

    def trial(self, proposal: Proposal, stage: Stage) -> Trial:
        """A candidate as a model to be checked."""


# Checks beside a pass that leaves nodes out: without disjoint parts of its target, to guess what it will hear.

_SURE = 0.98
"""The most that a guess is believed."""


class Scouts:
    """Guesses what a pass will be answered, by checks that it does not ask for itself.

    They are begun only where checks may run that nobody is likely to ask for otherwise, and what they come to is never
    counted, remembered or gone on from: the result is the same without them.
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
        """Take into account what a candidate of the pass has come to."""
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
        found = dict(self._made(most))
        self._begun = found
        return list(found.values())

    def _guess(self, candidate: Candidate) -> bool | None:
        return None if candidate.bypassed != self._target.bypassed else self._scouting.guess(frozenset(candidate.nodes))

    def _learn(self) -> None:
        for part, trial in self._begun.items():
            judged = self._candidates.oracle.foretold(trial)
            if judged is not None:
                self._scouting.learn(part, is_needed=judged.outcome is not Outcome.REPRODUCES)

    def _made(self, most: int) -> Iterator[tuple[Part[int], Trial]]:
        """Parts of which nobody knows yet, with the target without them as a model."""
        for part in self._scouting.parts(most):
            trial = self._begun.get(part)
            if trial is not None:
                yield part, trial
                continue
            description = f"without {len(part.items)} of {self._target.size} nodes, ahead"
            without = self._candidates.eligible(Proposal(self._target.without(part.items), description), self._target)
            if not without or without[0] == self._target:
                self._scouting.learn(part, is_needed=True)  # it always comes back
                continue
            known = self._candidates.known(without[0])
            if known is not None:
                self._scouting.learn(part, is_needed=not known)
                continue
            yield part, self._candidates.trial(Proposal(without[0], description), self._stage)


# How far looking ahead is worth its time: measured, since a check may be an instant function or take minutes.

_FADING = 0.8
"""The weight of what was measured before, beside one more measurement."""


class Pace:
    """What a candidate that is checked ahead costs, and what it saves if it is asked about.

    While a check is waited for, this process may idle, since the check runs elsewhere, or compute several things at
    once: that time is spare. In the rest it computes one thing at a time, as Python functions do that take turns in
    threads. A candidate that is checked ahead costs this rest and the time to foresee it, in any case; it saves the
    spare time too, but only if it is asked about. ``measured`` is False where that cannot be seen from here, and then
    looking ahead is always worth it. ``at_first``: so many checks at once before anything is known.
    """

    def __init__(self, *, measured: bool, at_first: int) -> None:
        self._measured = measured
        self._at_first = at_first
        self._spare: float | None = None  # seconds for each check that was waited for
        self._busy: float | None = None
        self._cost: float | None = None  # seconds for each candidate that was foreseen

    def at_once(self, jobs: int, likeliest: float) -> int:
        """How many checks to run at once at most, of so many that may.

        ``likeliest``: how likely what may come next is asked about, the most likely of it.
        """
        if self.least_chance >= likeliest:
            return 1
        return jobs if self.is_known else min(jobs, self._at_first)

    @property
    def is_known(self) -> bool:
        """Whether it has been found out, or cannot be."""
        return not self._measured or (self._spare is not None and self._cost is not None)

    def in_a_row(self, jobs: int, chance: float) -> int:
        """How many proposals to check at once where each is asked about only if none before it holds.

        ``chance``: how likely one holds.
        """
        most, count, asked = self.at_once(jobs, 1 - chance), 1, 1 - chance
        while count < most and asked > self.least_chance:
            count, asked = count + 1, asked * (1 - chance)
        return count

    @property
    def least_chance(self) -> float:
        """How likely a candidate must be asked about, from 0 to 1, for its check to be worth beginning before."""
        if not self._measured or self._spare is None or self._busy is None or self._cost is None:
            return 0.0
        paid = self._cost + self._busy
        return paid / (paid + self._spare) if self._spare else 1.0

    def looked_ahead(self, seconds: float, candidates: int) -> None:
        """Take into account what some candidates that were foreseen cost."""
        if candidates:
            self._cost = _faded(self._cost, seconds / candidates)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure while an answer is waited for."""
        if not self._measured:
            yield
            return
        wall, computing = time.perf_counter(), _computing()
        yield
        wall, computing = time.perf_counter() - wall, max(0.0, _computing() - computing)
        spare = abs(wall - computing)
        self._spare = _faded(self._spare, spare)
        self._busy = _faded(self._busy, max(0.0, wall - spare))


def _computing() -> float:
    """Seconds that threads of this process have computed, or waited for a core: a busy machine is not an idle check."""
    return time.process_time() + _waited_for_a_core()


def _waited_for_a_core() -> float:
    """Seconds, summed over the threads that there are now; 0 where the system does not tell."""
    try:
        return sum(map(_run_delay, Path("/proc/self/task").iterdir())) / 1e9
    except OSError:
        return 0.0


def _run_delay(thread: Path) -> int:
    """Nanoseconds that a thread was ready to run and did not."""
    try:
        return int((thread / "schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):  # it has just ended, or this kernel does not count
        return 0


def _faded(known: float | None, new: float) -> float:
    return new if known is None else _FADING * known + (1 - _FADING) * new
