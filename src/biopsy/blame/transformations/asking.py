"""Transformations that are judged one by one, told as they happen, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy import errors, events
from biopsy.blame.transformations.check import AskedPasses, TransformationCheck
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature

STAGE = "transform"


class Counter:
    """Counts what is asked."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The number of the next one, from 1."""
        self.count += 1
        return self.count


class Asking:
    """Asks a check about models and passes. ``reference`` is the failure that counts, None until there is one."""

    def __init__(self, check: TransformationCheck, listener: events.Listener, counter: Counter | None = None) -> None:
        self.check = check
        self.reference: Signature | None = None
        self.counter = counter or Counter()
        self._listener = listener

    def about(self, check: TransformationCheck) -> Asking:
        """The same, counted together, of another check."""
        other = Asking(check, self._listener, self.counter)
        other.reference = self.reference
        return other

    def judged(self, model: Path, passes: Sequence[str] | None, description: str, *, cold: bool = False) -> Judged:
        """How a model fails with these passes. Raises CheckError if the tool cannot be run."""
        number = self.counter.next()
        check = self.check.told(AskedPasses(passes=passes, cold=cold))
        line = check.line(model)
        self._listener(events.Checking(number=number, stage=STAGE, description=description, line=line))
        judged = judge(check.run(model), Rules(), self.reference)
        self._listener(judged.event(number, STAGE))
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(f"the check could not be run: {judged.reason}")
        return judged
