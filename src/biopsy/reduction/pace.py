"""Whether looking ahead is worth its time: measured, since a check may be an instant function or take minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_FADING = 0.8
"""The weight of what was measured before, beside one more measurement."""


class Pace:
    """What looking ahead costs for each candidate, and what is left of the time that a check is waited for.

    While a check is waited for, this process may idle, since the check runs elsewhere, or compute several things at
    once. If it computes one thing at a time all the while, as Python functions do that take turns in threads, then
    nothing is gained by one more. ``measured`` is False where that cannot be seen from here, and then looking ahead is
    always worth it. ``at_first``: so many checks at once before anything is known.
    """

    def __init__(self, *, measured: bool, at_first: int) -> None:
        self._measured = measured
        self._at_first = at_first
        self._spare: float | None = None  # seconds for each check that was waited for
        self._cost: float | None = None  # seconds for each candidate that was foreseen

    def at_once(self, jobs: int) -> int:
        """How many checks to run at once, of so many that may."""
        if not self._measured:
            return jobs
        if self._spare is None or self._cost is None:
            return min(jobs, self._at_first)
        return jobs if self._spare > self._cost else 1

    def looked_ahead(self, seconds: float, candidates: int) -> None:
        """Take into account what some candidates that were foreseen cost."""
        if candidates:
            self._cost = _faded(self._cost, seconds / candidates)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure while an answer is waited for."""
        wall, computed = time.perf_counter(), time.process_time()
        yield
        wall, computed = time.perf_counter() - wall, time.process_time() - computed
        self._spare = _faded(self._spare, abs(wall - computed))


def _faded(known: float | None, new: float) -> float:
    return new if known is None else _FADING * known + (1 - _FADING) * new
