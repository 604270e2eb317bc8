"""What a search may cost, and what it has cost so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a search: runs of the check that it waits for, and seconds of wall time; None for no limit."""

    checks: int | None = None
    seconds: float | None = None


class BudgetSpentError(Exception):
    """The search must end with the best result so far; the text names the limit that was reached."""


class BudgetMeter:
    """Counts runs of the check and seconds from its creation, and enforces a budget while a search goes on.

    Runs before and after the search, such as the first check of the original and the last of the result, are counted,
    but never refused: the limits hold only inside ``enforced``.
    """

    def __init__(self, budget: Budget = Budget()) -> None:
        self._budget = budget
        self._started = time.monotonic()
        self._asked = 0
        self._is_enforced = False

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Enforce the limits inside; may be nested."""
        before, self._is_enforced = self._is_enforced, True
        try:
            yield
        finally:
            self._is_enforced = before

    def spend(self) -> None:
        """Count one run of the check. Raises BudgetSpentError if it may not be made."""
        self._asked += 1
        if not self._is_enforced:
            return
        if self._budget.checks is not None and self._asked > self._budget.checks:
            raise BudgetSpentError(f"--max-checks {self._budget.checks}")
        if self.seconds_left == 0:
            raise self.time_is_up()

    @property
    def seconds_left(self) -> float | None:
        """How long a run may be waited for, in seconds; None for no limit."""
        if not self._is_enforced or self._budget.seconds is None:
            return None
        return max(0.0, self._budget.seconds - (time.monotonic() - self._started))

    def allows(self, pending: int) -> bool:
        """Whether another run may begin ahead of its question while so many are pending."""
        return not self._is_enforced or self._budget.checks is None or self._asked + pending <= self._budget.checks

    def time_is_up(self) -> BudgetSpentError:
        """The error for a search that has reached its time limit."""
        return BudgetSpentError(f"--max-time {self._budget.seconds:g}")
