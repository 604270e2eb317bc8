"""Processes that have the end to read of a pipe: who was forked with it, wherever it has gone since."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from biopsy.isolation.reaper import Moment, end_processes


def end_readers(pipe: int, since: Moment) -> None:
    """End every other process that has begun since and has the end to read of a pipe with this inode.

    Only where /proc shows the descriptors of processes.
    """

    def reads(pid: int) -> bool:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_is_end_to_read(entry.path, f"pipe:[{pipe}]") for entry in entries)

    end_processes(reads, since.younger)


def _is_end_to_read(descriptor: str, pipe: str) -> bool:
    with suppress(OSError):  # closed meanwhile
        return os.readlink(descriptor) == pipe and bool(os.lstat(descriptor).st_mode & stat.S_IRUSR)  # noqa: PTH115
    return False
