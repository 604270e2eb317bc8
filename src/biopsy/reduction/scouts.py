"""Checks beside a pass that leaves nodes out: without disjoint parts of its target, to guess what it will hear."""

from __future__ import annotations

from collections.abc import Iterator

from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.candidates import Candidates
from biopsy.search.scouting import Part, Scouting
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial

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
