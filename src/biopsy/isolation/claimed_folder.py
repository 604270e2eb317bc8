"""Temporary folders that tell whether anybody still uses them: what a machine that died has left can be removed.

Who makes one locks the folder itself, for as long as the process lives. A system ends such a lock with the process, and
a new start of the machine ends all.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from biopsy.isolation.cleanup import temporary_folder

_CAN_LOCK = find_spec("fcntl") is not None


@contextmanager
def claimed_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A temporary folder in ``parent`` that is gone afterwards; ``remove_abandoned`` spares it meanwhile.

    Raises OSError if it cannot be made.
    """
    while True:  # until nobody has taken it for an abandoned one before we could lock it
        with temporary_folder(prefix, parent) as folder:
            claim = _claimed(folder)
            if claim is None:
                continue
            try:
                yield folder
            finally:
                os.close(claim)
            return


def remove_abandoned(prefix: str, parent: Path) -> list[Path]:
    """Remove the folders with such names in ``parent`` that nobody claims any more; returns those that have gone.

    Only folders of this user are touched, and no link is followed. Where none can be locked, all stay.
    """
    gone: list[Path] = []
    if not _CAN_LOCK:
        return gone
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                claim = _claimed(path)
                if claim is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(claim)
                    gone += [] if path.exists() else [path]
    return gone


def _claimed(folder: Path) -> int | None:
    """A descriptor with which nobody else has the folder; None if somebody has, or if it is none of ours."""
    if not _CAN_LOCK:
        return os.open(os.devnull, os.O_RDONLY)
    import fcntl

    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(folder.lstat(), status):
                return descriptor
    except OSError:  # it is in use, has gone, or cannot be locked
        pass
    if descriptor >= 0:
        os.close(descriptor)
    return None
