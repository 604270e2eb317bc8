"""Questions that are asked beside a search that has begun, and that it must not come to an end without.

Each has an answer that everybody expects, such as that the original fails once more: nobody waits for it before the
search begins. But nothing is concluded from what the search finds before all have been answered as expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from biopsy import errors
from biopsy.checks.outcome import Evidence, Judged
from biopsy.session.budget import BudgetMeter
from biopsy.session.memory import OutcomeMemory
from biopsy.session.pool import PendingRun, Pool
from biopsy.session.tally import SearchTally
from biopsy.session.trial import Trial

Remedy: TypeAlias = Callable[[], None]
"""What is to be done after an unexpected answer, once the search has stopped; it raises what ends everything."""

Heed: TypeAlias = Callable[[Judged | errors.CheckError], Remedy | None]
"""Takes an answer; None if it is as expected."""


class Asker(Protocol):
    """What an oracle has for these questions."""

    pool: Pool
    budget: BudgetMeter
    memory: OutcomeMemory
    tally: SearchTally

    def begin(self, trial: Trial) -> PendingRun:
        """Begin a run on a model, for which there must be room."""

    def judged(self, run: PendingRun, evidence: Evidence) -> Judged:
        """What a run that has ended says, counted and told. Raises CheckError if the check could not be run."""


class SearchInDoubtError(Exception):
    """An answer was not as expected: what the search has found is worth nothing before the ``remedy`` was taken."""

    def __init__(self, remedy: Remedy) -> None:
        super().__init__("a question beside the search was answered otherwise than expected")
        self.remedy = remedy


@dataclass
class _Question:
    trial: Trial
    heed: Heed
    run: PendingRun | None = None


@dataclass
class Beside:
    """The open questions of an oracle. All but one of its places are theirs, one after the other."""

    oracle: Asker
    _open: list[_Question] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether all have been answered."""
        return not self._open

    def ask(self, trial: Trial, heed: Heed) -> None:
        """Have a model checked once, as soon as there is a place. Raises BudgetSpentError if it may not be checked."""
        self.oracle.budget.spend()
        self._open.append(_Question(replace(trial, is_kept=True), heed))

    def attend(self) -> None:
        """Take the answers that are there, and begin what there is room for. Raises SearchInDoubtError."""
        pool = self.oracle.pool
        for question in [one for one in self._open if one.run is not None and one.run.future.done()]:
            self._take(question)
        waiting = [one for one in self._open if one.run is None]
        room = min(pool.jobs - 1 - len(pool.kept), pool.jobs - len(pool.running))
        for question in waiting[: max(0, room)]:
            self._begin(question)

    def settle(self) -> None:
        """Wait for all answers. Raises SearchInDoubtError, and BudgetSpentError where time is limited."""
        while self._open:
            question = self._open[0]
            if question.run is None:
                self.oracle.pool.make_room(kept=())
                self._begin(question)
            self._take(question)

    def drop(self) -> None:
        """Want no answer any more."""
        runs = [one.run for one in self._open if one.run is not None]
        self._open.clear()
        self.oracle.pool.abandon(runs)

    def _begin(self, question: _Question) -> None:
        question.run = self.oracle.begin(question.trial)

    def _take(self, question: _Question) -> None:
        """Wait for an answer and heed it. Raises BudgetSpentError if there is no time left; the question stays open."""
        assert question.run is not None
        answer = self._answer(question.trial, question.run)
        self._open.remove(question)
        remedy = question.heed(answer)
        if remedy is not None:
            self.drop()
            raise SearchInDoubtError(remedy)

    def _answer(self, trial: Trial, run: PendingRun) -> Judged | errors.CheckError:
        oracle = self.oracle
        try:
            evidence = oracle.pool.wait(run, oracle.budget.seconds_left)
            if evidence is None:
                raise oracle.budget.time_is_up()
            oracle.tally.beside += 1
            judged = oracle.judged(run, evidence)
            if trial.stage.is_remembered:
                oracle.memory.add(trial, judged)
        except errors.CheckChanged:
            raise
        except errors.CheckError as error:
            return error
        return judged
