"""Reading small files that somebody else may have written: whatever stands there, it neither hangs nor exhausts us."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_CHUNK = 1 << 16


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file of at most ``most`` bytes.

    Raises OSError, with words for a person as its ``strerror``: also if it is a link, a pipe, a device or a folder, of
    which a read might never end, or larger than that.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NEVER_WAITS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if status.st_size > most:
            raise _too_large(most)
        return _read(descriptor, most)
    finally:
        os.close(descriptor)


_NEVER_WAITS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NOCTTY", 0)


def _read(descriptor: int, most: int) -> bytes:
    """What can be read; it may grow meanwhile."""
    found = bytearray()
    while chunk := os.read(descriptor, _CHUNK):
        found += chunk
        if len(found) > most:
            raise _too_large(most)
    return bytes(found)


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {most} bytes")
