"""A simulated clock: checks that take one round each, however long they really take, so that rounds can be counted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from biopsy.checks.outcome import Evidence

SECONDS = 3600.0
"""What each check says that it took: far more than looking ahead can."""


class SimulatedClock(Executor):
    """Runs checks in simulated time: all that were begun end together, at the moment when one is waited for.

    ``rounds`` counts these moments: what the checks would take, in units of one check, if as many machines as checks
    at once did nothing else.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._running: list[_Awaited] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a run, which ends when one is waited for."""
        future = _Awaited(self, lambda: fn(*args, **kwargs))
        self._running.append(future)
        return future

    def end_all(self) -> None:
        """Let time pass until all that runs has ended."""
        running, self._running = [future for future in self._running if not future.cancelled()], []
        self.rounds += bool(running)
        for future in running:
            future.end()


class _Awaited(Future[Any]):
    """A run that ends when it, or one that runs beside it, is waited for."""

    def __init__(self, clock: SimulatedClock, work: Callable[[], Any]) -> None:
        super().__init__()
        self._clock = clock
        self._work = work

    def end(self) -> None:
        """Do what is to be done."""
        self.set_running_or_notify_cancel()
        try:
            made = self._work()
            self.set_result(replace(made, seconds=SECONDS) if isinstance(made, Evidence) else made)
        except Exception as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        """What was done; until then time passes."""
        if not self.done():
            self._clock.end_all()
        return super().result(timeout)
