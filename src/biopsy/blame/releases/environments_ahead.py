"""Environments that are made while a check runs: those of releases that will be asked for, or may be."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from biopsy import errors, events
from biopsy.blame.releases.release_check import ReleaseCheck
from biopsy.blame.releases.runs import Preparing
from biopsy.environments.releases import Release


class EnvironmentsAhead:
    """Makes environments in up to ``jobs`` threads. What goes wrong is left to whoever asks for one later."""

    def __init__(self, check: ReleaseCheck, preparing: Preparing, jobs: int) -> None:
        self._check, self._preparing = check, preparing
        self._pool = ThreadPoolExecutor(jobs)
        self._made: dict[str, Future[None]] = {}

    def make(self, releases: Iterable[Release]) -> None:
        """Begin to make those of some releases, each once, in this order; those that wait from before are dropped."""
        for release, future in list(self._made.items()):
            if future.cancel():
                del self._made[release]
        for one in releases:
            if one.version not in self._made:
                self._made[one.version] = self._pool.submit(self._make, one)

    def wait_for(self, release: Release) -> None:
        """Wait for an environment that is being made."""
        future = self._made.get(release.version)
        if future is not None:
            future.result()

    def close(self) -> None:
        """Begin no more; what is being made may be finished, and stays in the cache."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, release: Release) -> None:
        with suppress(errors.BiopsyError), self._preparing(self._check, release, events.ignore):
            return
