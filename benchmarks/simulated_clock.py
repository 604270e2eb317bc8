"""A simulated clock: checks take as long as they are said to, so that rounds can be counted and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from heapq import heappop, heappush

from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task, run_check

SECONDS = 3600.0
"""What each check says that it took: far more than looking ahead can."""


class SimulatedClock:
    """Runs checks in simulated time, which passes only while somebody waits. It is given as an executor.

    ``lasts`` says how long a check of some evidence takes, in units of one check: by default one each. ``now`` is the
    time that has passed: what the checks would take, if as many machines as checks at once did nothing else. ``begun``
    counts checks, also those that were stopped.
    """

    def __init__(self, lasts: Callable[[Evidence], float] = lambda evidence: 1.0) -> None:
        self.now = 0.0
        self.begun = 0
        self._lasts = lasts
        self._ends: list[tuple[float, int, Future[Evidence], Evidence | Exception]] = []

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run, which ends while one is waited for; it is really made at once, to know how long it takes."""
        future: Future[Evidence] = Future()
        future.set_running_or_notify_cancel()
        ended: Evidence | Exception
        try:
            ended = run_check(task)
            lasts = self._lasts(ended)
            ended = replace(ended, seconds=SECONDS * lasts)
        except Exception as error:
            ended, lasts = error, 1.0
        self.begun += 1
        heappush(self._ends, (self.now + lasts, self.begun, future, ended))
        return future

    def stop(self, run: Future[Evidence]) -> None:
        """End a run at once, without an answer."""
        if not run.done():
            run.set_exception(InterruptedError("nobody waits for it any more"))

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Let time pass until one of the runs has ended; others that end at the same moment have ended too."""
        while not any(run.done() for run in runs):
            self.now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= self.now:
                *_, future, ended = heappop(self._ends)
                if future.done():
                    continue
                if isinstance(ended, Exception):
                    future.set_exception(ended)
                else:
                    future.set_result(ended)

    def close(self) -> None:
        """Nothing goes on."""
