"""Files that this program keeps beside the user's, such as locks: whatever stands there is used only if it is ours."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

PRIVATE = 0o600
"""The mode of what only this user is to read."""

_NEVER_FOLLOWS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def open_own(path: Path, *, mode: int = PRIVATE, flags: int = 0) -> int:
    """The descriptor of a file that is read and written, made if there is none; nothing in it is changed.

    ``flags`` are further ones for ``os.open``, such as O_APPEND.

    Raises OSError, with words for a person as its ``strerror``, if something else stands there: a link, a pipe, a
    device, a folder, a file of another user, or one that has a second name elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NEVER_FOLLOWS | flags, mode)
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


def lock(descriptor: int) -> None:
    """Have a file to ourselves until it is closed or this process ends. Raises BlockingIOError if another has it."""
    try:
        import fcntl
    except ImportError:  # not on this platform: two processes are not told apart
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
