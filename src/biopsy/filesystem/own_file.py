"""Files that this program keeps beside the user's, such as locks: whatever stands there is used only if it is ours."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from biopsy.filesystem.plain_file import NEVER_FOLLOWS

PRIVATE = 0o600
"""The mode of what only this user is to read."""

_BETWEEN_TWO_LOOKS = 0.01  # seconds


class InUseError(BlockingIOError):
    """Another process has the file."""


def open_own(path: Path, *, mode: int = PRIVATE, flags: int = 0) -> int:
    """The descriptor of a file that is read and written, made if there is none; nothing in it is changed.

    ``flags`` are further ones for ``os.open``, such as O_APPEND.

    Raises OSError, with words for a person as its ``strerror``, if something else stands there: a link, a pipe, a
    device, a folder, a file of another user, or one that has a second name elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NEVER_FOLLOWS | flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    try:
        require_own(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own(status: os.stat_result, path: Path) -> None:
    """Raise OSError, as ``open_own`` does, unless this is the status of a plain file of ours with one name."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to another file", str(path))


def open_locked(path: Path, patience: float, *, mode: int = PRIVATE, flags: int = 0, shared: bool = False) -> int:
    """As ``open_own``, and nobody else has the file until the descriptor is closed or this process ends.

    ``shared``: others may have it at the same time who want no more than that either.

    Raises InUseError if another process has it for ``patience`` seconds, OSError as ``open_own`` does.
    """
    until = time.monotonic() + patience
    while True:
        last = time.monotonic() >= until
        try:
            descriptor = take(path, mode=mode, flags=flags, shared=shared)
        except InUseError:
            if last:
                raise
            descriptor = None
        if descriptor is not None:
            return descriptor
        if last:
            raise InUseError(errno.EAGAIN, "others remove it again and again", str(path))
        time.sleep(_BETWEEN_TWO_LOOKS)


def take(path: Path, *, mode: int = PRIVATE, flags: int = 0, shared: bool = False) -> int | None:
    """One attempt of ``open_locked``; None if the file was removed or renamed before we had it."""
    descriptor = open_own(path, mode=mode, flags=flags)
    try:
        lock(descriptor, shared=shared)
        if stands_at(path, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Have a file to ourselves until it is closed or this process ends. Raises InUseError if another has it.

    ``shared``: only keep it from others who want it to themselves. What we have already may change from one to the
    other, and another may have had it in between.
    """
    try:
        import fcntl
    except ImportError:  # not on this platform: two processes are not told apart
        return
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUseError(error.errno, error.strerror) from None


def unlock(descriptor: int) -> None:
    """Let others have the file, though something here still has it open, such as a map."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def stands_at(path: Path, descriptor: int) -> bool:
    """Whether the very file that is open is the one at ``path``, which is not so once it was removed or renamed."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
