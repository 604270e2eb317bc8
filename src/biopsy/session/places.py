"""Where the files of runs stand that go on at the same time: under the user's own names, or numbered beside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from biopsy.checks.task import clear
from biopsy.isolation import cleanup


def numbered(path: Path, number: int) -> Path:
    """The file that stands for ``path`` in a place; place 0 is where the user knows it to be."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


class Places:
    """Numbers of places, each with files that a run has for itself until it has ended.

    They stand beside the ``candidate``, and beside further files that a check reads, where the user knows these to be.
    """

    def __init__(self, candidate: Path, read: Sequence[Path] = ()) -> None:
        self._candidate = candidate
        self._read = read
        self._files = {candidate, *read}
        self._made: set[Path] = set()

    def free(self, taken: Collection[int]) -> int:
        """The lowest number that is not ``taken``, and where nothing stands that is somebody else's."""
        number = 0
        while number in taken or (number and any(self._is_of_others(numbered(path, number)) for path in self._files)):
            number += 1
        return number

    def candidate(self, number: int) -> Path:
        """Where a candidate will stand."""
        path = numbered(self._candidate, number)
        self._made.add(path)
        return path

    def files(self, number: int, is_told: Callable[[Path], bool]) -> dict[Path, Path]:
        """What will stand there for each file that is read; who is not told looks where the user knows it to be."""
        files = {file: numbered(file, number) if is_told(file) else file for file in self._read}
        self._made.update(path for file, path in files.items() if path != file)
        return files

    def clear(self, *, keep_last: bool = False) -> None:
        """Remove what we made, but for the last candidate if that is kept: it is the user's file, as those read are."""
        for path in self._made - ({self._candidate} if keep_last else set()):
            with contextlib.suppress(OSError):  # what went wrong before is told, not this
                clear(path, whole=True)
        for path in self._made:
            cleanup.keep(path)

    def _is_of_others(self, path: Path) -> bool:
        return path in self._files or (path not in self._made and os.path.lexists(path))
