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
        mask |= _mask_of(path)
    if not mask:
        yield
        return
    _narrowed.begin(mask)
    try:
        yield
    finally:
        _narrowed.end(mask)


@contextlib.contextmanager
def as_private_as_what_is_read(paths: Iterable[Path]) -> Iterator[None]:
    """``as_private_as`` these files, and as each one that ``is_read`` tells of while it lasts."""
    with _reading, as_private_as(paths):
        yield


def is_read(path: Path) -> None:
    """Have what is written from now on be as private as a file, to the end of ``as_private_as_what_is_read``.

    For files that no option names, such as the weights of a model. Outside of such a block nothing is changed.
    """
    _reading.add(path)


def _mask_of(path: Path) -> int:
    """The bits of a umask for what a file does not grant; 0 for what is no plain file, or is not there."""
    with contextlib.suppress(OSError, ValueError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return _missing(status.st_mode)
    return 0


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


class _Reading:
    """Files that are read while a block lasts, and the narrowing that each of them asked for."""

    def __init__(self) -> None:
        self._depth = 0
        self._masks: set[int] = set()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            while self._masks:
                _narrowed.end(self._masks.pop())

    def add(self, path: Path) -> None:
        mask = _mask_of(path) if self._depth else 0
        if mask and mask not in self._masks:
            self._masks.add(mask)
            _narrowed.begin(mask)


_reading = _Reading()
