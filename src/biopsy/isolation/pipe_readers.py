"""Processes that have the end to read of a pipe: who was forked with it, wherever it has gone since."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress

from biopsy.isolation.cleanup import processes

_ROUNDS = 50
"""Looks for who is to end: whoever is born between two of them is found by the next."""


def end_readers(pipe: int) -> None:
    """End every other process that has the end to read of a pipe with this inode.

    Only where /proc shows the descriptors of processes.
    """
    for _ in range(_ROUNDS):
        readers = [pid for pid in processes() if pid != os.getpid() and _reads(pid, f"pipe:[{pipe}]")]
        for pid in readers:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not readers:
            return


def _reads(pid: int, pipe: str) -> bool:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        return any(_is_end_to_read(entry.path, pipe) for entry in entries)
    return False


def _is_end_to_read(descriptor: str, pipe: str) -> bool:
    with suppress(OSError):  # closed meanwhile
        return os.readlink(descriptor) == pipe and bool(os.lstat(descriptor).st_mode & stat.S_IRUSR)  # noqa: PTH115
    return False
