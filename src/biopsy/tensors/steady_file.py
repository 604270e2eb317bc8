"""A file whose pieces are read when they are needed, and refused once it is no more what it was.

It is not mapped into memory: whoever reads a mapped file that somebody cuts short is killed. Nor is it kept open: a
folder of iterations has thousands of files, and what is opened anew shares no position with forks of this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.filesystem.plain_file import FileState, open_plain

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads (offset, number of bytes)."""


class SteadyFile:
    """A plain file as it was when this was made; ``size`` in bytes. Raises OSError as ``open_plain`` does."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        with open_plain(self._path, follow=True) as stream:
            self._state = FileState.of(os.fstat(stream.fileno()))
        self.size = self._state.size

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """What reads it, of a given offset and number of bytes.

        Raises DataError if the file is not what it was, also if that happens meanwhile.
        """
        try:
            with open_plain(self._path, follow=True) as stream:
                descriptor = stream.fileno()
                self._require(descriptor)
                yield lambda offset, size: self._read(descriptor, offset, size)
                self._require(descriptor)
        except OSError as error:
            raise errors.DataError(f"{self._path} cannot be read any more: {error.strerror or error}") from error

    def _require(self, descriptor: int) -> None:
        now = FileState.of(os.fstat(descriptor))
        if now != self._state:
            raise changed(self._path, self.size, now.size)

    def _read(self, descriptor: int, offset: int, size: int) -> bytes:
        found = _read_at(descriptor, size, offset)
        while len(found) < size:  # no read gives more than 2 GiB
            more = _read_at(descriptor, size - len(found), offset + len(found))
            if not more:
                raise changed(self._path, self.size, os.fstat(descriptor).st_size)
            found += more
        return found


def changed(path: Path, before: int, now: int) -> errors.DataError:
    """The error that a file is no more what it was; sizes in bytes."""
    return errors.DataError(
        f"{path} was changed while it was read: it had {before} bytes, and has {now} now",
        next_steps=["wait until it is written, then type the same again"],
    )


def _seek_and_read(descriptor: int, size: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


_read_at = getattr(os, "pread", _seek_and_read)  # not on every platform
