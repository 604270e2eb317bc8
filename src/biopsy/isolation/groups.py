"""Sessions of processes: the memory that all of one uses."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from biopsy.isolation import cleanup

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def memory_of_session(leader: int) -> int:
    """Resident bytes of all processes of a session; pages that they share count for each."""
    total = 0
    for pid in cleanup.processes():
        with suppress(OSError, ValueError, IndexError):
            # What stands after the name in brackets: state, parent, group, session, ...; the 22nd is the resident set.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == leader:
                total += int(fields[21]) * _PAGE
    return total
