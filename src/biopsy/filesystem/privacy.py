"""What is made of a file is no more public than the file: a result holds what is in the model."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

_GROUP, _OTHERS = 0o070, 0o007


@contextlib.contextmanager
def as_private_as(paths: Iterable[Path]) -> Iterator[None]:
    """While it lasts, whatever is written gives the group and others no more than each of these files gives them.

    That holds for all files of this process and of those that it starts, such as checks and engines: it is the umask
    that is narrowed. What is no plain file, or is not there, narrows nothing.
    """
    mask = 0
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                mask |= _missing(status.st_mode)
    if not mask:
        yield
        return
    _narrowed.begin(mask)
    try:
        yield
    finally:
        _narrowed.end(mask)


def _missing(mode: int) -> int:
    """The bits of a umask for what a file does not grant; who may not read it may do nothing."""
    return (
        (~mode & 0o022)
        | (0 if mode & stat.S_IRGRP else _GROUP)
        | (0 if mode & stat.S_IROTH else _OTHERS)
    )  # fmt: skip


def make_as_private_as_new(descriptor: int) -> None:
    """Take from a file that stood there already what a new one would not give to the group and others."""
    if not hasattr(os, "fchmod"):
        return
    umask = os.umask(_GROUP | _OTHERS)
    os.umask(umask)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & umask & (_GROUP | _OTHERS):
        os.fchmod(descriptor, mode & ~(umask & (_GROUP | _OTHERS)))


class _Umask:
    """The umask of this process while several may want it narrower: the caller's comes back with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before = 0

    def begin(self, mask: int) -> None:
        with self._lock:
            if not self._wanted:
                self._before = os.umask(_GROUP | _OTHERS)
            self._wanted.append(mask)
            self._set()

    def end(self, mask: int) -> None:
        with self._lock:
            self._wanted.remove(mask)
            self._set()

    def _set(self) -> None:
        narrowed = self._before
        for mask in self._wanted:
            narrowed |= mask
        os.umask(narrowed)


_narrowed = _Umask()
