"""Whether a failure shows every time, how often a model must pass to be believed if it does not, and who confirms
what only a journal vouches for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.checks.journal import FRESH
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.repetition import interval, runs_needed
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
        oracle, started, tries = self._oracle, time.monotonic(), 0
        if not oracle.check.automatic:
            return oracle.judge(trial()), 1
        is_said = self._repeating.repeat is not None
        is_looked_at = at_once and not is_said and oracle.memory.noted(_NOTE) is None
        while True:
            judged = oracle.again(trial(), 1 + _MORE_OF_THE_ORIGINAL if is_looked_at else 1)
            tries += 1
            is_patient = not is_said and tries < MOST_TRIES and time.monotonic() - started < _PATIENCE
            is_answer = judged.outcome in {Outcome.REPRODUCES, Outcome.INVALID}
            if is_answer or not (is_patient or tries < oracle.memory.repetitions):
                return judged, tries

    def begin(self, trial: Trial, tries: int) -> None:
        """Look closer at the original, which has failed once in ``tries`` runs."""
        if self._repeating.repeat is not None or not self._oracle.check.automatic or self._resumed():
            return
        if tries > 1:
            self._measure(trial, 1, tries)
        elif self._shows_again(trial, _MORE_OF_THE_ORIGINAL):
            self._note(1 + _MORE_OF_THE_ORIGINAL, 1 + _MORE_OF_THE_ORIGINAL)

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
        failed, most = 1 + begun, 1 + _MORE_OF_THE_ORIGINAL
        if failed == most:
            self._note(most, most)

        def measure() -> None:
            self._measure(trial, failed, failed + 1)
            then()

        def heed(answer: Judged | errors.CheckError) -> Remedy | None:
            nonlocal failed
            if isinstance(answer, errors.CheckError):
                return answer
            if answer.outcome is not Outcome.REPRODUCES:
                return measure
            failed += 1
            if failed == most:
                self._note(most, most)
            return None

        for _ in range(most - failed):
            self._oracle.beside.ask(trial, heed)

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
        self._oracle.pool.abandon_all()
        self._set(failed, runs)
        self._note(failed, runs)

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
            counts = json.loads(noted)
            names = ("failed", "runs", "needed")
            if not isinstance(counts, dict) or not all(type(counts.get(name)) is int for name in names):
                raise ValueError("it holds no counts")
            failed, runs, needed = (counts[name] for name in names)
            if not (1 <= failed <= runs <= _ENOUGH_RUNS and needed >= 1):
                raise ValueError(f"{failed} of {runs} runs")
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

    def _note(self, failed: int, runs: int) -> None:
        """Write down in how many runs the original failed, and how many a passing candidate needs."""
        memory = self._oracle.memory
        needed = memory.repetitions if self.is_flaky else 1
        memory.note(_NOTE, json.dumps({"failed": failed, "runs": runs, "needed": needed}))


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
