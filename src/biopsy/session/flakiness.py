"""Whether a failure shows every time, how often a model must pass to be believed if it does not, and who confirms
what only a journal vouches for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from biopsy import errors, events
from biopsy.checks.journal import FRESH
from biopsy.checks.judge import interval, runs_needed
from biopsy.checks.outcome import Judged, Outcome
from biopsy.session.oracle import Oracle, Remedy
from biopsy.session.trial import Trial

MOST_TRIES = 16
"""Runs of which none fails before a failure counts as gone: one that shows in every third run is missed in 0.2 %."""

_PATIENCE = 30.0  # seconds after which a slow check is not tried for the failure any more
_MORE_OF_THE_ORIGINAL = 2
_MORE_OF_THE_RESULT = 8
_NOTE = "flakiness"
_ENOUGH_FAILURES = 10
_ENOUGH_RUNS = 40
_RUNS_FOR_A_RATE = 10
_Z = 1.0  # the rate is taken at the lower end of an 84 % one-sided interval: too many runs cost less than luck


@dataclass(frozen=True, kw_only=True)
class Repeating:
    """What a person said: ``repeat`` runs for every passing candidate, or, if None, as many as ``confidence`` needs."""

    repeat: int | None = None
    confidence: float = 0.99


class Flakiness:
    """What is known of how reliably a failure shows."""

    def __init__(self, oracle: Oracle, repeating: Repeating = Repeating()) -> None:
        self._oracle = oracle
        self._repeating = repeating
        self.is_flaky = False
        self._is_from_journal = False  # whether only a file says that it is flaky
        if repeating.repeat is not None:
            oracle.memory.repetitions = repeating.repeat

    def failure(self, trial: Callable[[], Trial], *, at_once: bool = False) -> tuple[Judged, int]:
        """Check a model until it fails, at most as often as is worth it: the last answer, and how many runs it took.

        ``trial`` makes it anew for each run. ``at_once``: several may run at the same time, for more runs will be asked
        for if it fails. A check that is a person is asked once, and not at all what they answered before an
        interruption.
        """
        started, tries = time.monotonic(), 0
        wanted = 1 + self.more_of_the_original if at_once else 1
        while True:
            person = not self._oracle.check.automatic
            judged = self._oracle.judge(trial()) if person else self._oracle.again(trial(), wanted)
            tries += 1
            said = judged.outcome in {Outcome.REPRODUCES, Outcome.INVALID}
            if said or not self._worth_another(tries, time.monotonic() - started):
                return judged, tries

    @property
    def more_of_the_original(self) -> int:
        """How many runs follow the first one in which the original fails."""
        unasked = self._repeating.repeat is not None or not self._oracle.check.automatic
        known = self._oracle.memory.noted(_NOTE) is not None
        return 0 if unasked or known else _MORE_OF_THE_ORIGINAL

    def _worth_another(self, tries: int, seconds: float) -> bool:
        if not self._oracle.check.automatic:
            return False
        if tries < self._oracle.memory.repetitions:
            return True
        given = self._repeating.repeat is not None
        return not given and tries < MOST_TRIES and seconds < _PATIENCE

    def begin(self, trial: Trial, tries: int) -> None:
        """Look closer at the original, which has failed once in ``tries`` runs."""
        if self._repeating.repeat is not None or not self._oracle.check.automatic or self._resumed():
            return
        if tries > 1:
            self._measure(trial, 1, tries)
        elif self._shows_again(trial, _MORE_OF_THE_ORIGINAL):
            self._note_steady()

    def begin_beside(self, trial: Trial, then: Callable[[], None]) -> None:
        """Look closer at the original, which has failed in its first run, while the search begins.

        Only runs that have begun already are waited for. ``then`` is called after a failure was found to be flaky, and
        measured.
        """
        if self._repeating.repeat is not None or self._resumed():
            return
        begun = min(len(self._oracle.pool.runs_of(trial)), _MORE_OF_THE_ORIGINAL)
        if not self._shows_again(trial, begun):
            return
        if begun == _MORE_OF_THE_ORIGINAL:
            self._note_steady()
        failed = 1 + begun

        def measure() -> None:
            self._measure(trial, failed, failed + 1)
            then()

        def heed(answer: Judged | errors.CheckError) -> Remedy | None:
            nonlocal failed
            if isinstance(answer, errors.CheckError):
                return partial(_raise, answer)
            if answer.outcome is not Outcome.REPRODUCES:
                return measure
            failed += 1
            if failed == 1 + _MORE_OF_THE_ORIGINAL:
                self._note_steady()
            return None

        for _ in range(_MORE_OF_THE_ORIGINAL - begun):
            self._oracle.beside.ask(trial, heed)

    def _note_steady(self) -> None:
        """Write down that the original has failed in all of its first runs."""
        runs = 1 + _MORE_OF_THE_ORIGINAL
        self._note({"failed": runs, "runs": runs, "needed": 1})

    def holds(self, trial: Trial) -> bool:
        """Whether the result of a search shows its failure again and again.

        False if that was not known before: what passed on the way to it may have been luck.
        """
        if self._repeating.repeat is not None or self.is_flaky or not self._oracle.check.automatic or trial.size == 1:
            return True
        return self._shows_again(trial, _MORE_OF_THE_RESULT)

    def noticed_late(self, trial: Trial, tries: int) -> bool:
        """Whether the last check has shown what nobody knew; the search must then be run again."""
        if tries == 1 or self.is_flaky or self._repeating.repeat is not None:
            return False
        self._measure(trial, 1, tries)
        return True

    def rarer(self, result: Callable[[], Trial], tries: int, original: Trial) -> tuple[str, str] | None:
        """Whether a result that has failed once in ``tries`` runs fails more rarely than an original that was steady.

        Both are run some times more. What they showed, such as "2 of 12" and "12 of 12"; None if their rates may be the
        same (their intervals meet), if the original is flaky too, or if a person said how often to repeat.
        """
        if (
            (self.is_flaky and not self._is_from_journal)
            or self._repeating.repeat is not None
            or not self._oracle.check.automatic
        ):
            return None
        before = [self._oracle.again(original, left).outcome for left in range(_RUNS_FOR_A_RATE, 0, -1)]
        known = before.count(Outcome.REPRODUCES)
        if self.is_flaky and known < len(before):
            return None
        again = [self._oracle.again(result()).outcome for _ in range(_RUNS_FOR_A_RATE - 1)]
        shown, runs = 1 + again.count(Outcome.REPRODUCES), tries + len(again)
        if interval(shown, runs)[1] >= interval(known, len(before))[0]:
            return None
        return f"{shown} of {runs}", f"{known} of {len(before)}"

    def _shows_again(self, trial: Trial, times: int) -> bool:
        for done in range(times):
            if self._oracle.again(trial, times - done).outcome is not Outcome.REPRODUCES:
                self._measure(trial, done + 1, done + 2)
                return False
        return True

    def _measure(self, trial: Trial, failed: int, runs: int) -> None:
        """Run until the failure has shown so often that its rate is known, and set the repetitions."""
        while failed < _ENOUGH_FAILURES and runs < _ENOUGH_RUNS:
            # About so many if every other one fails. What is begun in vain is not counted, only what is asked in turn.
            wanted = min(2 * (_ENOUGH_FAILURES - failed), _ENOUGH_RUNS - runs)
            failed += self._oracle.again(trial, wanted).outcome is Outcome.REPRODUCES
            runs += 1
        self._oracle.abandon_all()
        self._set(failed, runs)
        self._note({"failed": failed, "runs": runs, "needed": self._oracle.memory.repetitions})

    def _set(self, failed: int, runs: int) -> None:
        self.is_flaky = True
        self._oracle.memory.repetitions = needed = runs_needed(
            interval(failed, runs, _Z)[0], self._repeating.confidence
        )
        self._oracle.listener(events.FlakyFailure(failed, runs, needed, self._repeating.confidence))

    def _resumed(self) -> bool:
        """Take what an interrupted search found out, if there was one. Raises UsageError if that cannot be."""
        memory = self._oracle.memory
        noted = memory.noted(_NOTE)
        if noted is None:
            return False
        try:
            failed, runs, needed = _counts(noted)
        except (ValueError, RecursionError) as error:
            raise errors.UsageError(
                f"the journal {memory.journal_path} does not tell how often the original fails: {error}",
                kept="the journal, as it is",
                next_steps=[FRESH],
            ) from error
        if needed > 1:
            self._is_from_journal = True
            self._set(failed, runs)
        return True

    def _note(self, counts: dict[str, int]) -> None:
        self._oracle.memory.note(_NOTE, json.dumps(counts))


def _raise(error: errors.CheckError) -> NoReturn:
    raise error


def _counts(noted: str) -> tuple[int, int, int]:
    """How often it failed, of how many runs, and how many are needed. Raises ValueError for what nobody measured."""
    counts = json.loads(noted)
    if not isinstance(counts, dict) or not all(type(counts.get(name)) is int for name in ("failed", "runs", "needed")):
        raise ValueError("it holds no counts")
    failed, runs, needed = counts["failed"], counts["runs"], counts["needed"]
    if not (1 <= failed <= runs <= _ENOUGH_RUNS and needed >= 1):
        raise ValueError(f"{failed} of {runs} runs")
    return failed, runs, needed


def require_confirmed(oracle: Oracle, trial: Trial, wanted: Outcome, claim: str, kept: str) -> None:
    """Ask a person about a result that only a journal says they have seen: anybody may have written that.

    Raises CheckError, with what is ``kept``, if the answer is not the ``wanted`` outcome; ``claim`` says what the
    journal does. Checks that are no person are asked about every result, once it is written.
    """
    if oracle.check.automatic or oracle.memory.was_asked(trial):
        return
    judged = oracle.again(trial)
    if judged.outcome is wanted:
        return

    raise errors.CheckError(
        f"the journal says that {claim}, and you do not ({judged.outcome.value})", kept=kept, next_steps=[FRESH]
    )
