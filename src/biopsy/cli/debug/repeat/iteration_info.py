"""The file of ``--iter-info``: one for each run that goes on at the same time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.checks.command import CommandCheck


class IterationInfo:
    """Writes the number of each run where its ``check`` reads it: to ``file``, or to one beside it that it is told.

    No ``file``: nothing is written.
    """

    def __init__(self, check: CommandCheck, file: Path | None) -> None:
        from biopsy.session.places import Places

        self._check = check
        self._file = file
        self._places = None if file is None else Places(file)
        self._taken: dict[int, int] = {}  # the place of each run, by its number

    def begin(self, number: int, running: Collection[int]) -> CommandCheck:
        """Write it for a run that is about to begin while others are ``running``; returns the check to run."""
        if self._file is None or self._places is None:
            return self._check
        from biopsy.checks.artifacts import write_iteration
        from biopsy.isolation import cleanup

        self._taken = {run: place for run, place in self._taken.items() if run in running}
        place = self._places.free(set(self._taken.values()))
        self._taken[number] = place
        path = self._places.candidate(place)
        write_iteration(path, number)
        if path == self._file:
            return self._check
        cleanup.take_what_stands_at(path)
        return self._check.with_files({self._file: path})

    def close(self, last: int | None) -> None:
        """Leave the file of the ``last`` run that was counted, and none beside it, once all runs have ended."""
        if self._file is None or self._places is None:
            return
        from biopsy.checks.artifacts import write_iteration

        self._places.clear(keep_last=True)
        if last is not None:
            write_iteration(self._file, last)
