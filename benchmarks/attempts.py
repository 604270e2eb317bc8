"""Measurements that may break or hang: one that does leaves its reason in its place, and all others are made."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

LIMIT = 1_800.0
"""Seconds after which a measurement is given up, unless it has a limit of its own."""

_AT_ONCE = 1e-3
"""Seconds: 0 would stop the clock."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class NotMeasured:
    """Why there is no measurement."""

    reason: str

    def __str__(self) -> str:
        return f"not measured: {self.reason}"


def attempt(measure: Callable[[], Made], limit: float = LIMIT) -> Made | NotMeasured:
    """What ``measure`` returns, or why it returned nothing within ``limit`` seconds. Only in the main thread.

    Where one stands within another, the limit of the outer one ends both.
    """
    now = time.monotonic()
    left = signal.getitimer(signal.ITIMER_REAL)[0] or math.inf
    try:
        if left <= limit:
            return measure()
        with _limited(limit, now + left):
            return measure()
    except (Exception, SystemExit) as error:  # whatever it is, the other measurements are worth having
        if time.monotonic() >= now + left:
            raise
        words = " ".join(str(error).split()).replace("|", "/")
        return NotMeasured(f"{type(error).__name__}: {words}"[:200])


@contextlib.contextmanager
def _limited(seconds: float, until: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds; the alarm that was set for the time ``until`` is set again then."""

    def give_up(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if until < math.inf:
            signal.setitimer(signal.ITIMER_REAL, max(_AT_ONCE, until - time.monotonic()))


def times_faster(slow: float | None, fast: float, *, at_least: bool = False) -> str:
    """A cell of the column "times faster"; "" without anything to compare with."""
    if slow is None:
        return ""
    return f"{'> ' if at_least else ''}{slow / fast:,.1f}×"
