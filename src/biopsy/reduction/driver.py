"""The driver: runs passes, has their proposals checked, and keeps the smallest candidate that reproduces.

Checks of candidates that a pass will probably propose next begin ahead, as far as that saves time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.model.external import is_external
from biopsy.model.load import parse
from biopsy.model.slice import candidate_parts
from biopsy.reduction.passes.common import Change, NamedModelPass, NamedPass, NotFoundOutError, PassContext, unrefuted
from biopsy.reduction.passes.weights import named_tensors
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
    likely_questions,
)
from biopsy.session.oracle import Oracle, Remedy
from biopsy.session.trial import Stage, Trial
from biopsy.session.workspace import Workspace
from biopsy.slow_imports import onnx


class Driver:
    """Runs passes on one problem, and asks the oracle about their proposals.

    ``best`` is the smallest candidate that reproduces; ``refined`` is its model once passes over the model changed it.
    ``passing`` holds the candidates that passed, in the order of their checks. ``identity_passed`` is how often a model
    of one Identity node has passed; None if the check cannot say.
    """

    def __init__(self, problem: Problem, oracle: Oracle, workspace: Workspace) -> None:
        self.problem = problem
        self.oracle = oracle
        self.workspace = workspace
        self.listener = oracle.listener
        # A check that cannot be stopped may be an instant function, so it is measured before many run at once.
        at_first = oracle.jobs if oracle.check.stoppable else 2
        self.pace = Pace(measured=not oracle.pool.is_shared, at_first=at_first)
        self.refined: onnx.ModelProto | None = None
        self.best: Candidate | None = None
        self.passing: dict[Candidate, None] = {}
        self.identity_passed: int | None = 0
        self._known: dict[Candidate, tuple[Judged, bytes]] = {}
        oracle.left = len(problem.index.nodes)

    def search(
        self, named: NamedPass, target: Candidate, context: PassContext, then: Sequence[NamedPass] = ()
    ) -> Candidate:
        """Run a pass to its end; returns the smallest candidate that reproduced, or ``target``.

        ``then`` are the passes that will follow, whose first checks may begin ahead.
        """
        started, checks = time.monotonic(), self.oracle.tally.asked
        self.listener(events.StageStarted(named.name, target.size, named.usual(target.size)))
        before, stage = target, Stage(named.name)
        lookahead = Lookahead(self, named, context, before, then)

        def first_that_reproduces(proposals: Round[Proposal]) -> Candidate | None:
            for proposal in proposals:
                candidates = self.eligible(proposal, target)
                if candidates == [target]:
                    return target  # all that was left out came back
                for candidate in candidates:
                    judged = self.judge_candidate(candidate, stage, proposal.description, lookahead)
                    reproduces = judged.outcome is Outcome.REPRODUCES
                    lookahead.learn(candidate, reproduces=reproduces)
                    if reproduces:
                        self.best = candidate
                        return candidate
            return None

        search = RunningSearch(named.search(context, target))
        while search.round is not None:
            answer = first_that_reproduces(search.round)
            lookahead.answers.append(answer)
            target = answer or target
            search.reply(answer)
        if target is not before:
            self.oracle.beside.settle()  # before the progress is reported
        if not then:
            self.oracle.pool.abandon_all()
        self._report_done(named.name, before.size, target.size, checks, started)
        return target

    def refine(self, named: NamedModelPass, context: PassContext) -> None:
        """Run a pass over the model to its end; ``refined`` is then the simplest model that reproduced.

        Only if the pass has a proposal, it is found out whether values may change, which can cost checks.
        """
        started, checks, before = time.monotonic(), self.oracle.tally.asked, self.left
        search = RunningSearch(named.search(self.best_model()))
        if search.round is None or not (named.keeps_values or context.may_change_values):
            return
        self.listener(events.StageStarted(named.name, before, 0))
        odds = Odds()
        search.run(lambda changes: self._first_change_that_reproduces(changes, Stage(named.name), odds))
        if self.oracle.tally.asked > checks:
            self._report_done(named.name, before, self.left, checks, started)

    def _report_done(self, stage: str, before: int, after: int, checks_before: int, started: float) -> None:
        checks, seconds = self.oracle.tally.asked - checks_before, time.monotonic() - started
        self.listener(events.PassDone(stage=stage, checks=checks, seconds=seconds, before=before, after=after))

    def _first_change_that_reproduces(
        self, changes: Iterable[Change], stage: Stage, odds: Odds
    ) -> onnx.ModelProto | None:
        current = self.best_trial(stage, "").digest
        waiting = unrefuted(self.best_model(), filter(self._may_run, changes))
        window: list[tuple[onnx.ModelProto, Trial]] = []
        while True:
            started, at_once = time.thread_time(), self.pace.in_a_row(self.oracle.jobs, odds.chance)
            before = len(window)
            for change in islice(waiting, max(0, at_once - before)):
                data, size = change.model.SerializeToString(deterministic=True), len(change.model.graph.node)
                trial = Trial(parts=[data], size=size, stage=stage, description=change.description)
                window.append((change.model, trial))
            self.pace.looked_ahead(time.thread_time() - started, len(window) - before)
            if not window:
                return None
            model, trial = window.pop(0)
            if trial.digest == current:
                return model
            if at_once > 1:
                self.oracle.ahead(iter([trial, *(other for _, other in window if other.digest != current)]))
            with self.pace.waiting():
                judged = self.oracle.judge(trial, alone=at_once == 1)
            reproduces = judged.outcome is Outcome.REPRODUCES
            odds.add(held=reproduces)
            if reproduces:
                self.refined = model
                self.oracle.pool.abandon_all()
                return model

    @property
    def is_smaller(self) -> bool:
        """Whether a simpler model than the original is known to reproduce."""
        return self.refined is not None or self.best not in (None, self.problem.original)

    @property
    def left(self) -> int:
        """The number of nodes of the best model so far."""
        if self.refined is not None:
            return len(self.refined.graph.node)
        return self.best.size if self.best else len(self.problem.index.nodes)

    def parts(self, candidate: Candidate, *, marked: bool = False) -> list[bytes]:
        """The bytes of a closed candidate, with references to external weights from the folder of candidates.

        ``marked``: every tensor is an output.
        """
        boundary = self.problem.everything_marked(candidate) if marked else self.problem.boundary(candidate)
        return candidate_parts(self.problem.subset(candidate), replace(boundary, places=self.workspace.places))

    def trial(self, candidate: Candidate, stage: Stage, description: str, *, marked: bool = False) -> Trial:
        """A closed candidate as a model to check; ``marked`` as in ``parts``."""
        # Answers about the same candidate fed with all recorded values must not count.
        is_fed_others = self.problem.feeds_vouched_only and self.problem.doubtful(candidate, fed=True)
        return Trial(
            parts=self.parts(candidate, marked=marked),
            size=candidate.size,
            stage=stage,
            description=description,
            inputs="vouched for" if is_fed_others else "",
        )

    def best_parts(self) -> list[bytes]:
        """The bytes of the best model so far, as it was checked."""
        if self.refined is not None:
            return [self.refined.SerializeToString(deterministic=True)]
        assert self.best is not None
        return self.parts(self.best)

    def best_trial(self, stage: Stage, description: str) -> Trial:
        """The best model so far as a model to check again."""
        return Trial(parts=self.best_parts(), size=self.left, stage=stage, description=description)

    def _may_run(self, change: Change) -> bool:
        """Whether no weight and no recorded value says that the nodes of a change never run in the best model."""
        stored = dict(named_tensors(self.best_model())) if change.runs_if else {}
        for name, truth in change.runs_if.items():
            value = self.problem.recording.constant_value(name) if name in self.problem.index.ids else None
            if name in stored and not is_external(stored[name]):
                value = onnx.numpy_helper.to_array(stored[name])
            if value is not None and value.any() != truth:
                return False
        return True

    def best_model(self) -> onnx.ModelProto:
        """The best model so far as a protobuf object, without external weights."""
        return self.refined if self.refined is not None else parse(b"".join(self.best_parts()), None)

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """The closed candidates of a proposal, one for each sample that matters; none if they are no smaller.

        It is only ``target`` if closing the proposal gives the target.
        """
        candidate = self.problem.closed(proposal.candidate)
        if candidate == target:
            return [target]
        if candidate is None or candidate.size >= target.size:
            return []
        return self.problem.samples_of(candidate)

    def known_needed(self, target: Candidate) -> frozenset[int]:
        """The nodes of a target each of which was the only one missing in a candidate that did not reproduce."""
        kept = frozenset(target.nodes)
        lacking = (
            kept.difference(candidate.nodes)
            for candidate, (judged, _) in self._known.items()
            if judged.outcome is not Outcome.REPRODUCES and candidate.bypassed == target.bypassed
        )
        return frozenset(node for nodes in lacking if len(nodes) == 1 for node in nodes)

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces; None if it has not been checked."""
        known = self._known.get(candidate)
        return None if known is None else known[0].outcome is Outcome.REPRODUCES

    def judge_candidate(
        self, candidate: Candidate, stage: Stage, description: str, lookahead: Lookahead | None = None
    ) -> Judged:
        """The outcome of a closed candidate; it is checked only once."""
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
        self.best, self.refined = self.problem.original, None

    def start_over_with(self, remedy: Remedy) -> None:
        """Go back to the original and apply the remedy. Raises it if it is a CheckError."""
        self.oracle.pool.abandon_all()
        self.start_over()
        self.doubt()
        if isinstance(remedy, errors.CheckError):
            raise remedy
        remedy()

    def go_back(self, candidate: Candidate) -> None:
        """Make a candidate that reproduces the best one again, and forget all answers.

        The oracle still answers from its memory about candidates of the same bytes.
        """
        self.best, self.refined = candidate, None
        self._known.clear()
        self.passing.clear()

    def doubt(self) -> None:
        """Forget all answers but failures: since the failure is flaky, a passing check proves nothing."""
        self._known = {
            candidate: (judged, digest)
            for candidate, (judged, digest) in self._known.items()
            if judged.outcome is Outcome.REPRODUCES
        }
        self.passing.clear()

    def forget(self, digest: bytes) -> None:
        """Forget the answer about the candidate with this digest, which a person took back."""
        for candidate in [candidate for candidate, (_, of_known) in self._known.items() if of_known == digest]:
            del self._known[candidate]
            self.passing.pop(candidate, None)


_WORSE_THAN_SCOUT = 1 / 16
"""Scouts run in place of checks with at most this chance to be asked for: four even chances in a row."""

_MOST_NODES = 256
"""Nodes of the largest target with which the next pass is foreseen: ordering more takes too long."""


@dataclass(frozen=True)
class Foreseen:
    """A proposal that a pass may make."""

    named: NamedPass
    proposal: Proposal


PassFuture: TypeAlias = Future[Foreseen, Candidate, Foreseen]


def foreseeable(
    passes: Sequence[NamedPass],
    context: PassContext,
    start: Candidate,
    eligible: Callable[[Proposal, Candidate], list[Candidate]],
) -> Foreseeable[Foreseen, Candidate, Foreseen]:
    """A sequence of passes that begins with a candidate, as one search to foresee; its questions are ``eligible``."""
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
    """Keeps the checks running that a pass will most probably ask for.

    ``answers`` are the answers to the rounds of the pass so far; the driver appends to it. ``then`` are the passes that
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
            needed = driver.known_needed(start)
            order = [node for node in context.problem.order(start) if node not in needed]
            self._scouts = Scouts(driver, start, Scouting(order, sorted(needed)), Stage(named.name))

    def learn(self, candidate: Candidate, *, reproduces: bool) -> None:
        """Take the answer about a candidate into account."""
        self._odds.add(held=reproduces)
        if self._scouts is not None:
            self._scouts.learn(candidate, reproduces=reproduces)

    def begin(self, candidate: Candidate, trial: Trial) -> bool:
        """Begin the check of a candidate, and further checks that may be asked for next, up to the limit.

        Running checks continue if they may still be asked for. If the candidate's check has ended, no further ones
        begin. Returns False, and begins nothing, if looking ahead is not worth the time.
        """
        driver, oracle, pace = self._driver, self._driver.oracle, self._driver.pace
        if oracle.has_ended(trial):
            return True
        at_once = pace.at_once(oracle.jobs, 0.5 if self._named.halves else self._odds.likeliest)
        if at_once == 1:
            oracle.pool.abandon_all(but=[trial])
            return False
        started = time.thread_time()
        future = self._at(candidate, self._future) or self._at(candidate, Future(self._search, self.answers))
        if future is None:
            return True
        self._future = future
        running = {**self._trials, candidate: trial}
        scouts: list[Trial] = []
        if self._scouts is not None:
            least = max(_WORSE_THAN_SCOUT, pace.least_chance)
            room = at_once - sum(1 for _ in islice(likely_questions(future, self._chance, least=least), at_once))
            scouts = self._scouts.trials(room) if room else []
        likely = islice(likely_questions(future, self._chance, least=pace.least_chance), at_once - len(scouts))
        next_trials = {
            foreseen.proposal.candidate: running.get(foreseen.proposal.candidate)
            or driver.trial(foreseen.proposal.candidate, Stage(foreseen.named.name), foreseen.proposal.description)
            for foreseen in likely
        }
        pace.looked_ahead(time.thread_time() - started, len(next_trials.keys() - running.keys()))
        oracle.keep_going([trial, *next_trials.values(), *scouts])
        pending = {run.trial.digest for run in oracle.pool.pending}
        self._trials = {each: begun for each, begun in {**running, **next_trials}.items() if begun.digest in pending}
        return True

    def _at(self, candidate: Candidate, future: PassFuture) -> PassFuture | None:
        """The future in which a candidate is asked about; None if known answers do not lead there."""
        while (question := future.question) is not None and question.proposal.candidate != candidate:
            known = self._driver.known(question.proposal.candidate)
            if known is None:
                return None
            future = future.behind(known)
        return None if question is None else future

    def _chance(self, foreseen: Foreseen) -> float:
        """The chance that a candidate reproduces: 0 or 1 if known, else what scouts found, else the share so far."""
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


_MOST_TRUST = 0.98
"""The greatest chance that a guess is given."""


class Scouts:
    """Guesses the answers that a pass will get, by checks of its target without disjoint parts of its nodes.

    These checks only run where a process would be idle. Their outcomes are neither counted nor remembered and never
    decide, so the result is the same without them.
    """

    def __init__(self, driver: Driver, start: Candidate, scouting: Scouting[int], stage: Stage) -> None:
        self._driver = driver
        self._target = start
        self._scouting = scouting
        self._stage = stage
        self._begun: dict[Part[int], Trial] = {}

    def chance(self, candidate: Candidate) -> float | None:
        """The chance that a candidate reproduces; None if there is no guess."""
        guess = self._guess(candidate)
        if guess is None:
            return None
        trust = min(_MOST_TRUST, self._scouting.trust)
        return trust if guess else 1 - trust

    def learn(self, candidate: Candidate, *, reproduces: bool) -> None:
        """Take the answer about a candidate of the pass into account."""
        guess = self._guess(candidate)
        if guess is not None:
            self._scouting.came_true(right=guess is reproduces)
        if reproduces:
            self._learn_from_ended()
            self._target = candidate
            self._scouting.restrict(set(candidate.nodes))

    def trials(self, most: int) -> list[Trial]:
        """At most ``most`` models to check; some of the checks may be running already."""
        if self._scouting.trust == 0.5:
            return []
        self._learn_from_ended()
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

    def _learn_from_ended(self) -> None:
        for part, trial in self._begun.items():
            judged = self._driver.oracle.foretold(trial)
            if judged is not None:
                self._scouting.learn(part, is_needed=judged.outcome is not Outcome.REPRODUCES)


_FADING = 0.8
"""The weight of the mean of earlier measurements when a new one is added."""


class Pace:
    """Measures whether it saves time to check candidates ahead: a check may be an instant function or take minutes.

    While the driver waits for a check, this process may be idle, because the check runs elsewhere, or compute on
    several cores: this time is *spare*. The rest of the time it is *busy*: it computes one thing at a time, as with
    Python functions that take turns in threads. A check ahead always costs the busy time and the time to foresee it. It
    saves these and the spare time, but only if it is asked for.

    ``measured`` is False if the time cannot be measured here; looking ahead is then always worth it. ``at_first`` is
    the number of checks at once before the first measurement.
    """

    def __init__(self, *, measured: bool, at_first: int) -> None:
        self._measured = measured
        self._at_first = at_first
        self._spare: float | None = None  # mean seconds per check
        self._busy = 0.0  # mean seconds per check
        self._cost: float | None = None  # mean seconds to foresee a candidate

    def at_once(self, jobs: int, likeliest: float) -> int:
        """The number of checks to run at once, up to ``jobs``.

        ``likeliest`` is the chance that the most probable next candidate is asked about.
        """
        if self.least_chance >= likeliest:
            return 1
        return jobs if self.is_known else min(jobs, self._at_first)

    @property
    def is_known(self) -> bool:
        """Whether the pace has been measured, or cannot be measured."""
        return not self._measured or (self._spare is not None and self._cost is not None)

    def in_a_row(self, jobs: int, chance: float) -> int:
        """The number of proposals to check at once if each is asked about only if none before it reproduces.

        ``chance`` is the chance that a proposal reproduces.
        """
        most, count, chance_to_be_asked = self.at_once(jobs, 1 - chance), 1, 1 - chance
        while count < most and chance_to_be_asked > self.least_chance:
            count, chance_to_be_asked = count + 1, chance_to_be_asked * (1 - chance)
        return count

    @property
    def least_chance(self) -> float:
        """The chance to be asked about, from 0 to 1, from which on a candidate is worth checking ahead."""
        if self._spare is None or self._cost is None:
            return 0.0
        cost = self._cost + self._busy
        return cost / (cost + self._spare) if self._spare else 1.0

    def looked_ahead(self, seconds: float, candidates: int) -> None:
        """Take the seconds that it took to foresee some candidates into account."""
        if candidates:
            self._cost = _faded(self._cost, seconds / candidates)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the time in which the driver waits for an answer."""
        if not self._measured:
            yield
            return
        # Time in which threads wait for a core counts as computing: the machine is busy, not idle.
        wall, computing = time.perf_counter(), time.process_time() + _waited_for_a_core()
        yield
        computing = time.process_time() + _waited_for_a_core() - computing
        wall = time.perf_counter() - wall
        spare = abs(wall - max(0.0, computing))
        self._busy = _faded(None if self._spare is None else self._busy, max(0.0, wall - spare))
        self._spare = _faded(self._spare, spare)


def _waited_for_a_core() -> float:
    """Seconds in which the present threads were ready to run but had no core; 0 if the system does not count them."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # the thread has just ended, or the kernel does not count
                nanoseconds += int((thread / "schedstat").read_bytes().split()[1])
    return nanoseconds / 1e9


def _faded(mean: float | None, new: float) -> float:
    return new if mean is None else _FADING * mean + (1 - _FADING) * new
