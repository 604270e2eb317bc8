"""How far looking ahead is worth its time: measured, since a check may be an instant function or take minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        if not self._measured or self._spare is None or self._busy is None or self._cost is None:
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
    """Nanoseconds that a thread was ready to run but did not get a core."""
    try:
        return int((thread / "schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):  # it has just ended, or this kernel does not count
        return 0


def _faded(known: float | None, new: float) -> float:
    return new if known is None else _FADING * known + (1 - _FADING) * new
