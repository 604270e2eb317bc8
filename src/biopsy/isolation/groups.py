"""Process groups and sessions: a signal to all of one, the memory that all of one uses."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from biopsy.isolation import cleanup

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group."""
    with suppress(ProcessLookupError, PermissionError):  # everyone has gone; macOS says so by EPERM
        os.killpg(leader, number)


def end_group(leader: int) -> None:
    """Kill a process and its group."""
    signal_group(leader, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(leader, signal.SIGKILL)  # it may not lead a group yet


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


def sacrifice(pid: int) -> None:
    """Where memory runs out, have the system end this process rather than the one that waits for it."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("800")
