"""Who runs checks: threads of our own, or whoever a caller gives; and what anybody who does must be able to do."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, runtime_checkable

from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Inline, Task, run_check
from biopsy.isolation.watch import Stop


@runtime_checkable
class Workers(Protocol):
    """Runs checks, several at once, here or on other machines.

    All methods are called from one thread. What a run raises is in its future. A machine that dies says nothing about
    a model: who has machines runs the check again elsewhere, and raises CheckError once that is in vain.
    """

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run."""

    def stop(self, run: Future[Any]) -> None:
        """Say that nobody waits for a run any more: it ends soon, with all that it has started, or as soon as it can.

        Its future is done once it has ended, and not before.
        """

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        """Return once one of these runs has ended, or after so many seconds."""

    def close(self) -> None:
        """End what still runs, and wait for that."""


class Threads:
    """Threads of this process: as many checks at once as are begun, but at least ``jobs``.

    A check that cannot be stopped is waited for at the end.
    """

    def __init__(self, jobs: int, *, inline: bool = False) -> None:
        # Some may still be ending while others begin.
        self._executor: Executor = Inline() if inline else ThreadPoolExecutor(2 * jobs, "biopsy-check")
        self._stops: dict[Future[Evidence], Stop] = {}

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run; in this thread if they are to be ``inline``."""
        self._free_ended()
        if not task.check.stoppable:
            return self._executor.submit(run_check, task)
        stop = Stop()
        run = self._executor.submit(run_check, task, stop)
        self._stops[run] = stop
        return run

    def stop(self, run: Future[Evidence]) -> None:
        """Have it never begin, or have its check stopped."""
        stop = self._stops.get(run)
        if not run.cancel() and stop is not None and not run.done():
            stop.set()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop what runs, and wait until it has ended."""
        for run in list(self._stops):
            self.stop(run)
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._free_ended()

    def _free_ended(self) -> None:
        for run in [run for run in self._stops if run.done()]:
            self._stops.pop(run).close()


class OfExecutor:
    """An executor of a caller's, who also ends it. What it has begun cannot be stopped, and goes on."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, task: Task) -> Future[Evidence]:
        """Hand it to the executor."""
        return self._executor.submit(run_check, task)

    def stop(self, run: Future[Evidence]) -> None:
        """Have it never begin, if it has not."""
        run.cancel()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Leave the executor as it is."""
