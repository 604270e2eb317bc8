"""Sessions of processes: the memory that all of one uses."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from biopsy.isolation.reaper import processes

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


NAME_OF_HELP = "for %d"
"""What a process calls itself that works for a session and cannot be in it, since a warm process has forked it."""


def memory_of_session(leader: int) -> int:
    """Resident bytes of all processes of a session, and of those that work for it; shared pages count for each."""
    total = 0
    helping = (NAME_OF_HELP % leader).encode()
    for pid in processes():
        with suppress(OSError, ValueError, IndexError):
            # What stands after the name in brackets: state, parent, group, session, ...; the 22nd is the resident set.
            before, _, after = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
            fields = after.split()
            if int(fields[3]) == leader or before.partition(b"(")[2] == helping:
                total += int(fields[21]) * _PAGE
    return total
