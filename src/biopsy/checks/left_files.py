"""Files that a check leaves on another machine, and that are to come back: read there, bounded in size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from biopsy import errors
from biopsy.checks.task import clear
from biopsy.filesystem.plain_file import open_plain
from biopsy.quantities import size_text

MOST_BYTES = 256_000_000
"""Bytes of all files that one run may bring back."""


class LeftFiles:
    """The files that are called ``wanted`` here. ``places`` has the path of each on this machine.

    A check that is not told the name writes it into its current folder, which is ``folder``.
    """

    def __init__(self, folder: Path, places: Mapping[str, Path], wanted: Sequence[str]) -> None:
        self._folder = folder
        self._places = places
        self._wanted = wanted

    def clear(self) -> None:
        """Remove what an earlier run has left."""
        for ours in self._wanted:
            for path in self._paths(ours):
                with contextlib.suppress(OSError):
                    clear(path, whole=True)

    def read(self) -> tuple[tuple[str, bytes], ...]:
        """Those that are there. Raises CheckError for what is no plain file, or if they are too large."""
        found: list[tuple[str, bytes]] = []
        room = MOST_BYTES
        for ours in self._wanted:
            content = self._content(ours, room)
            if content is not None:
                found.append((ours, content))
                room -= len(content)
        return tuple(found)

    def _paths(self, ours: str) -> Iterator[Path]:
        yield self._places[ours]
        if not PurePath(ours).is_absolute() and ".." not in PurePath(ours).parts:
            yield self._folder / ours

    def _content(self, ours: str, room: int) -> bytes | None:
        for path in self._paths(ours):
            try:
                with open_plain(path) as stream:
                    content = b"" if os.fstat(stream.fileno()).st_size > room else stream.read(room + 1)
                    is_too_large = os.fstat(stream.fileno()).st_size > room
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _stays(ours, str(error.strerror or error)) from error
            if is_too_large or len(content) > room:
                raise _stays(ours, f"at most {size_text(MOST_BYTES)} of files come back from one run")
            return content
        return None


def _stays(ours: str, why: str) -> errors.CheckError:
    return errors.CheckError(
        f"the artifact {ours} cannot be brought back from another machine: {why}",
        next_steps=["leave it out of --artifacts, or leave --on out"],
    )
