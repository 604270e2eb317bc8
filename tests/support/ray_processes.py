"""The processes of the nodes of a Ray cluster on this machine: each node has variables of its own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from biopsy.processes.reaper import processes
from support.processes import runs
from support.session import LIMIT


def processes_with(entry: str) -> dict[int, str]:
    """The command lines of processes that have this variable, such as ``NAME=value``, by their numbers."""
    found = {}
    for pid in processes():
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if os.fsencode(entry) in environment and runs(pid):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def seconds_until_gone(*pids: int) -> float:
    """How long processes still run."""
    began = monotonic()
    while any(map(runs, pids)):
        assert monotonic() - began < LIMIT, [pid for pid in pids if runs(pid)]
        sleep(0.01)
    return monotonic() - began
