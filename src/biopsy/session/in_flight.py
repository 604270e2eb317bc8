"""What is told of the checks that are going on at once, here or on other machines."""

from __future__ import annotations

from biopsy import events
from biopsy.session.machines import OtherMachines
from biopsy.session.workers import Workers

_LOOK = 0.5
"""Seconds between two looks at what other machines do, while a search waits for them."""


class InFlight:
    """Tells ``listener`` of the checks of some workers, whenever they have changed since it was last told.

    Nothing is told where one check runs after the other on this machine.
    """

    def __init__(self, workers: Workers, jobs: int, listener: events.Listener) -> None:
        self.cancelled = 0
        self._machines = workers if isinstance(workers, OtherMachines) else None
        self._is_told = jobs > 1 or self._machines is not None
        self._listener = listener
        self._told = events.ChecksInFlight(running=0, waiting=0, ending=0, cancelled=0)
        if self._machines is not None:
            self._machines.expect(jobs)

    def tell(self, wanted: int, ending: int) -> None:
        """Tell of so many checks whose answers are wanted, and so many that were cancelled and have not ended."""
        if not self._is_told:
            return
        use = None if self._machines is None else self._machines.use
        running = wanted if use is None else min(wanted, use.running)
        now = events.ChecksInFlight(
            running=running,
            waiting=wanted - running,
            ending=ending,
            cancelled=self.cancelled,
            machines=None if use is None else use.machines,
        )
        if now != self._told:
            self._told = now
            self._listener(now)

    def patience(self, seconds: float | None) -> float | None:
        """How long to wait before it is told again, if so many seconds are left; None for as long as it takes."""
        if self._machines is None:
            return seconds
        return _LOOK if seconds is None else min(_LOOK, seconds)
