"""A large file, read where it is looked at. Not mapped: who reads a map of a file that is cut short dies by SIGBUS."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import overload

from biopsy import errors

_WINDOW = 1 << 14
"""Bytes that are read where one is asked for: a walk over tags and lengths asks for neighbours."""


class FileChanged(errors.ModelError):
    """A model file was written to after it had been opened: what was read of it does not fit what it holds now."""


class FileBuffer:
    """The bytes of a file, by number and by slice, as of the time when it was opened.

    Every read raises FileChanged if the file has been written to or cut short since; one that was replaced by another
    is read on as it was.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor``: of the file, which is opened; a duplicate is kept. ``path`` is named in messages."""
        self._path = path
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._state_now()
        self._length = self._state[0]
        self._window = 0, b""  # where it starts, and its bytes: one attribute, since threads read the same buffer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> bytes: ...

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self._length)
            return self._read(start, max(0, stop - start))
        start, window = self._window
        if not 0 <= key - start < len(window):
            if not 0 <= key < self._length:
                raise IndexError(key)
            start, window = key, self._read(key, min(_WINDOW, self._length - key))
            self._window = start, window
        return window[key - start]

    def __bytes__(self) -> bytes:
        return self[:]

    def _read(self, start: int, length: int) -> bytes:
        found: list[bytes] = []
        missing = length
        while missing:
            part = os.pread(self._descriptor, missing, start + length - missing)
            if not part:
                raise self._changed()
            found.append(part)
            missing -= len(part)
        if self._state_now() != self._state:
            raise self._changed()
        return found[0] if len(found) == 1 else b"".join(found)

    def _state_now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def _changed(self) -> FileChanged:
        size = os.fstat(self._descriptor).st_size
        how = f"it had {self._length} bytes, and has {size} now" if size != self._length else "it was written to"
        return FileChanged(
            f"the model {self._path} was changed while it was read: {how}",
            next_steps=["wait until it is written, then type the same again"],
        )
