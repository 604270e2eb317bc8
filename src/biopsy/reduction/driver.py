"""The driver: has what passes propose checked, and keeps the smallest candidate that reproduces; what will probably be
asked next is checked ahead, as far as that is worth the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.model.load import parse
from biopsy.model.slice import candidate_parts
from biopsy.reduction.passes.common import (
    Change,
    NamedModelPass,
    NamedPass,
    NotFoundOutError,
    PassContext,
    unrefuted,
)
from biopsy.reduction.problem import Candidate, Problem, Proposal
from biopsy.search.drive import (
    FEWEST,
    Foreseeable,
    Future,
    Odds,
    Part,
    Round,
    RunningSearch,
    Scouting,
    Search,
    drive,
    likely_questions,
)
from biopsy.session.oracle import Oracle, Remedy
from biopsy.session.trial import Stage, Trial
from biopsy.session.workspace import Workspace

if TYPE_CHECKING:
    import onnx


class Driver:
    """Runs passes on one problem, and asks the oracle about what they propose.

    ``best`` is the smallest candidate that reproduces, ``refined`` what passes over the model itself have made of it.
    ``passing`` has the candidates that passed, in the order in which they were asked about.
    """

    def __init__(self, problem: Problem, oracle: Oracle, workspace: Workspace) -> None:
        self.problem = problem
        self.oracle = oracle
        self.workspace = workspace
        self.listener = oracle.listener
        # A check that cannot be stopped may be an instant function: it is measured before many are begun.
        at_first = oracle.jobs if oracle.check.stoppable else 2
        self.pace = Pace(measured=not oracle.pool.is_shared, at_first=at_first)
        self.refined: onnx.ModelProto | None = None
        self.best: Candidate | None = None
        self.passing: dict[Candidate, None] = {}
        self._known: dict[Candidate, tuple[Judged, bytes]] = {}
        oracle.left = len(problem.index.nodes)

    def search(
        self, named: NamedPass, target: Candidate, context: PassContext, then: Sequence[NamedPass] = ()
    ) -> Candidate:
        """Run one pass to its end; returns the smallest candidate that reproduced, ``target`` if none did.

        ``then`` are passes that will follow: what they ask about may be checked before.
        """
        started, checks = time.monotonic(), self.oracle.tally.asked
        self.listener(events.StageStarted(named.name, target.size, named.usual(target.size)))
        before, stage = target, Stage(named.name)
        lookahead = Lookahead(self, named, context, before, then)

        def first_that_reproduces(proposals: Round[Proposal]) -> Candidate | None:
            for proposal in proposals:
                candidates = self.eligible(proposal, target)
                if candidates == [target]:
                    return target  # nothing can be left out of what was proposed: the answer is known
                for candidate in candidates:
                    judged = self.judge_candidate(candidate, stage, proposal.description, lookahead)
                    reproduces = judged.outcome is Outcome.REPRODUCES
                    lookahead.heard(candidate, reproduces=reproduces)
                    if reproduces:
                        self.best = candidate
                        return candidate
            return None

        def answer(proposals: Round[Proposal]) -> Candidate | None:
            nonlocal target
            reproducing = first_that_reproduces(proposals)
            lookahead.answers.append(reproducing)
            target = reproducing or target
            return reproducing

        drive(named.search(context, target), answer)
        if target is not before:
            self.oracle.beside.settle()  # before it is told
        if not then:
            self.oracle.pool.abandon_all()
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
        window: list[tuple[onnx.ModelProto, Trial]] = []
        while True:
            started, many = time.thread_time(), self.pace.in_a_row(self.oracle.jobs, odds.chance)
            new = [
                (change.model, _trial_of(change.model, stage, change.description))
                for change in islice(waiting, max(0, many - len(window)))
            ]
            self.pace.looked_ahead(time.thread_time() - started, len(new))
            window += new
            if not window:
                return None
            model, trial = window.pop(0)
            if trial.digest == current:
                return model
            if many > 1:
                self.oracle.ahead(iter([trial, *(other for _, other in window if other.digest != current)]))
            with self.pace.waiting():
                judged = self.oracle.judge(trial, alone=many == 1)
            reproduces = judged.outcome is Outcome.REPRODUCES
            odds.add(held=reproduces)
            if reproduces:
                self.refined = model
                self.oracle.pool.abandon_all()
                return model

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

    def parts(self, candidate: Candidate, *, marked: bool = False) -> list[bytes]:
        """A closed candidate as bytes, its external weights referred to from the folder where candidates stand.

        ``marked``: every tensor is an output.
        """
        boundary = self.problem.everything_marked(candidate) if marked else self.problem.boundary(candidate)
        return candidate_parts(self.problem.subset(candidate), replace(boundary, places=self.workspace.places))

    def trial(self, candidate: Candidate, stage: Stage, description: str, *, marked: bool = False) -> Trial:
        """A closed candidate as a model to be checked; ``marked`` as ``parts`` says."""
        # What was remembered of a candidate that was fed recorded values was about other ones.
        is_fed_others = self.problem.feeds_vouched_only and self.problem.doubtful(candidate, fed=True)
        return Trial(
            parts=self.parts(candidate, marked=marked),
            size=candidate.size,
            stage=stage,
            description=description,
            inputs="vouched for" if is_fed_others else "",
        )

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
        answer = self._known.get(candidate)
        return None if answer is None else answer[0].outcome is Outcome.REPRODUCES

    def judge_candidate(
        self, candidate: Candidate, stage: Stage, description: str, lookahead: Lookahead | None = None
    ) -> Judged:
        """The outcome of a candidate that is closed, from memory if it was checked before."""
        known = self._known.get(candidate)
        if known is not None:
            return known[0]
        trial = self.trial(candidate, stage, description)
        alone, meanwhile = False, None
        if lookahead is not None and self.oracle.jobs > 1 and self.oracle.memory.conclusion(trial) is None:
            alone = not lookahead.begin(candidate, trial)
            meanwhile = partial(lookahead.begin, candidate, trial) if self.pace.is_known and not alone else None
        with self.pace.waiting():
            judged = self.oracle.judge(trial, alone=alone, meanwhile=meanwhile)
        self._known[candidate] = judged, trial.digest
        if judged.outcome is Outcome.PASSES:
            self.passing[candidate] = None
        return judged

    def start_over(self) -> None:
        """Make the whole original the best model again."""
        self.best, self.refined = self.problem.whole, None

    def begin_anew(self, remedy: Remedy) -> None:
        """Go back to the original, as if what makes the search doubtful had been known before it began."""
        self.oracle.pool.abandon_all()
        self.start_over()
        self.doubt()
        if isinstance(remedy, errors.CheckError):
            raise remedy
        remedy()

    def go_back(self, ground: Candidate) -> None:
        """Make a candidate that reproduces the best again, and forget the answers about all others.

        A candidate of the same bytes as before is still answered from the oracle's memory.
        """
        self.best, self.refined = ground, None
        self._known.clear()
        self.passing.clear()

    def doubt(self) -> None:
        """Forget all answers but failures: the failure turned out to be flaky, so a pass proves nothing."""
        self._known = {
            candidate: (judged, digest)
            for candidate, (judged, digest) in self._known.items()
            if judged.outcome is Outcome.REPRODUCES
        }
        self.passing.clear()

    def forget(self, digest: bytes) -> None:
        """Forget what is known of the candidate with this digest: a person took the answer back."""
        for candidate in [candidate for candidate, (_, known) in self._known.items() if known == digest]:
            del self._known[candidate]
            self.passing.pop(candidate, None)


def _trial_of(model: onnx.ModelProto, stage: Stage, description: str) -> Trial:
    data = model.SerializeToString(deterministic=True)
    return Trial(parts=[data], size=len(model.graph.node), stage=stage, description=description)


# What will probably be checked next, so that checks can begin before they are asked for.

_HARDLY = 1 / 16
"""How likely a question is asked, at most, that a scout is worth more than: four even chances in a row."""

_MOST_NODES = 256
"""Nodes of a target from which a pass is begun on a guess: to put more of them in order takes too long."""


@dataclass(frozen=True)
class Foreseen:
    """A proposal that a pass may ask about."""

    named: NamedPass
    proposal: Proposal


PassFuture: TypeAlias = Future[Foreseen, Candidate, Foreseen]


def foreseeable(
    passes: Sequence[NamedPass],
    context: PassContext,
    start: Candidate,
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Foreseeable[Foreseen, Candidate, Foreseen]:
    """A sequence of passes from a candidate on, as a search to foresee; its questions are closed, worth a check."""
    later = context.for_guesses()

    def begin() -> Search[Foreseen, Candidate, None]:
        target = start
        for number, named in enumerate(passes):
            if number and not 1 < target.size <= _MOST_NODES:
                return
            try:
                running = RunningSearch(named.search(later if number else context, target))
                while running.round is not None:
                    answer = yield map(partial(Foreseen, named), running.round)
                    target = answer or target
                    running.reply(answer)
            except NotFoundOutError:
                return

    def questions(
        proposals: Round[Foreseen], answers: Sequence[Candidate | None]
    ) -> Generator[Foreseen, None, Candidate | None]:
        target = next(filter(None, reversed(answers)), start)
        for foreseen in proposals:
            closed = eligible(foreseen.proposal, target)
            if closed == [target]:
                return target
            for candidate in closed:
                yield Foreseen(foreseen.named, Proposal(candidate, foreseen.proposal.description))
        return None

    return Foreseeable(begin=begin, questions=questions, held=lambda foreseen: foreseen.proposal.candidate)


class Lookahead:
    """Keeps those checks running that a pass will most probably ask for.

    ``answers`` are the answers to its rounds so far; whoever runs the pass appends to it. ``then`` are the passes that
    will follow.
    """

    def __init__(
        self, driver: Driver, named: NamedPass, context: PassContext, start: Candidate, then: Sequence[NamedPass]
    ) -> None:
        self._driver = driver
        self._named = named
        self._search = foreseeable((named, *then), context, start, driver.eligible)
        self._future: PassFuture = Future(self._search)
        self.answers: list[Candidate | None] = []
        self._odds = Odds()
        self._trials: dict[Candidate, Trial] = {}
        self._scouts: Scouts | None = None
        if named.leaves_out and driver.oracle.jobs > FEWEST:
            needed = driver.missed(start)  # what was found to be needed before is not tried again
            order = [node for node in context.problem.order(start) if node not in needed]
            self._scouts = Scouts(driver, start, Scouting(order, sorted(needed)), Stage(named.name))

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
        driver, oracle, pace = self._driver, self._driver.oracle, self._driver.pace
        if oracle.has_ended(trial):
            return True
        most = pace.at_once(oracle.jobs, 0.5 if self._named.halves else self._odds.likeliest)
        if most == 1:
            oracle.pool.abandon_all(but=[trial])
            return False
        started = time.thread_time()
        future = self._at(asked, self._future) or self._at(asked, Future(self._search, self.answers))
        if future is None:
            return True
        self._future = future
        before = {**self._trials, asked: trial}
        scouts: list[Trial] = []
        if self._scouts is not None:  # in the places that no check takes that is likely enough to be asked for
            least = max(_HARDLY, pace.least_chance)
            room = most - sum(1 for _ in islice(likely_questions(future, self._chance, least=least), most))
            scouts = self._scouts.trials(room) if room else []
        likely = islice(likely_questions(future, self._chance, least=pace.least_chance), most - len(scouts))
        soon = {
            foreseen.proposal.candidate: before.get(foreseen.proposal.candidate)
            or driver.trial(foreseen.proposal.candidate, Stage(foreseen.named.name), foreseen.proposal.description)
            for foreseen in likely
        }
        pace.looked_ahead(time.thread_time() - started, len(soon.keys() - before.keys()))
        oracle.keep_going([trial, *soon.values(), *scouts])
        pending = {run.trial.digest for run in oracle.pool.pending}
        self._trials = {candidate: begun for candidate, begun in {**before, **soon}.items() if begun.digest in pending}
        return True

    def _at(self, asked: Candidate, future: PassFuture) -> PassFuture | None:
        """The future in which a candidate is asked about, if answers that are known lead there."""
        while (question := future.question) is not None and question.proposal.candidate != asked:
            known = self._driver.known(question.proposal.candidate)
            if known is None:
                return None
            future = future.behind(known)
        return None if question is None else future

    def _chance(self, foreseen: Foreseen) -> float:
        """How likely a candidate reproduces: 0 or 1 if that is known, a scout's guess, or as often as those before."""
        candidate = foreseen.proposal.candidate
        known, begun = self._driver.known(candidate), self._trials.get(candidate)
        if known is None and begun is not None and (judged := self._driver.oracle.foretold(begun)) is not None:
            known = judged.outcome is Outcome.REPRODUCES
        if known is not None:
            return float(known)
        guessed = None if self._scouts is None else self._scouts.chance(candidate)
        if guessed is not None:
            return guessed
        return self._odds.chance if foreseen.named is self._named and not self._named.halves else 0.5


_SURE = 0.98
"""The most that a guess is believed."""


class Scouts:
    """Guesses the answers that a pass will get, by checks of its target without disjoint parts of its nodes.

    They run only where a process would be idle otherwise. Their outcomes are never counted or remembered, and no search
    goes on from them: the result is the same without them.
    """

    def __init__(self, driver: Driver, start: Candidate, scouting: Scouting[int], stage: Stage) -> None:
        self._driver = driver
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
            without = self._driver.eligible(Proposal(self._target.without(part.items), description), self._target)
            if not without or without[0] == self._target:
                self._scouting.learn(part, is_needed=True)  # it always comes back
                continue
            known = self._driver.known(without[0])
            if known is None:
                trials[part] = self._driver.trial(without[0], self._stage, description)
            else:
                self._scouting.learn(part, is_needed=not known)
        self._begun = trials
        return list(trials.values())

    def _guess(self, candidate: Candidate) -> bool | None:
        return None if candidate.bypassed != self._target.bypassed else self._scouting.guess(candidate.kept)

    def _learn(self) -> None:
        for part, trial in self._begun.items():
            judged = self._driver.oracle.foretold(trial)
            if judged is not None:
                self._scouting.learn(part, is_needed=judged.outcome is not Outcome.REPRODUCES)


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
        self._busy = 0.0
        self._cost: float | None = None  # seconds for each candidate that was foreseen

    def at_once(self, jobs: int, likeliest: float) -> int:
        """How many checks to run at once, at most ``jobs``.

        ``likeliest`` is the chance that the most probable next candidate is asked about.
        """
        if self.least_chance >= likeliest:
            return 1
        return jobs if self.is_known else min(jobs, self._at_first)

    @property
    def is_known(self) -> bool:
        """Whether the pace has been measured, or cannot be."""
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
        if self._spare is None or self._cost is None:
            return 0.0
        paid = self._cost + self._busy
        return paid / (paid + self._spare) if self._spare else 1.0

    def looked_ahead(self, seconds: float, candidates: int) -> None:
        """Take into account the seconds that some foreseen candidates took to make."""
        if candidates:
            self._cost = _faded(self._cost, seconds / candidates)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure while an answer is waited for."""
        if not self._measured:
            yield
            return
        # A core that threads wait for is a busy machine, and no idle check.
        wall, computing = time.perf_counter(), time.process_time() + _waited_for_a_core()
        yield
        computing = time.process_time() + _waited_for_a_core() - computing
        wall = time.perf_counter() - wall
        spare = abs(wall - max(0.0, computing))
        self._busy = _faded(None if self._spare is None else self._busy, max(0.0, wall - spare))
        self._spare = _faded(self._spare, spare)


def _waited_for_a_core() -> float:
    """Seconds that the threads that there are now were ready to run but did not get a core; 0 if no system tells."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # it has just ended, or this kernel does not count
                nanoseconds += int((thread / "schedstat").read_bytes().split()[1])
    return nanoseconds / 1e9


def _faded(known: float | None, new: float) -> float:
    return new if known is None else _FADING * known + (1 - _FADING) * new
