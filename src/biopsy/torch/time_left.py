"""The time that a diagnosis may take: what is left of it for a run, and when it is over."""

from __future__ import annotations

import time

from biopsy import events
from biopsy.diagnosis.context import TimeUpError

_LEAST_SECONDS = 1.0


class TimeLeft:
    """Counts from when it is made; ``seconds`` is None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds(self) -> float | None:
        """What is left, never less than 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.seconds == 0

    def require(self) -> None:
        """Raise TimeUpError if it is over."""
        if self.is_over:
            raise TimeUpError

    def for_run(self, timeout: float | None) -> float | None:
        """The seconds that a run may take which may take ``timeout`` by itself; None for any."""
        left = None if self.seconds is None else max(_LEAST_SECONDS, self.seconds)
        return min((one for one in (timeout, left) if one is not None), default=None)

    def bounding(self, listener: events.Listener) -> events.Listener:
        """A listener for work that knows of no limit: it raises TimeUpError once the time is over."""

        def bounded(event: events.Event) -> None:
            listener(event)
            self.require()

        return bounded
