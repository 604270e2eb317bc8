"""A command line as a process of its own, with the time that it takes and the memory of all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.processes.own_process import taken_by_family
from support.command_line import BIN


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a command line ended, in seconds and bytes; it was killed at its bounds if ``status`` is -9."""

    status: int
    seconds: float
    peak: int
    out: str
    err: str


def measured(words: Sequence[str], folder: Path, *, seconds: float, memory: int) -> Measured:
    """Run ``biopsy WORDS`` in a folder, and end it when it takes more than these seconds, or bytes."""
    began, peak = time.monotonic(), 0
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        process = subprocess.Popen(
            [BIN / "biopsy", *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0
        )
        while process.poll() is None:
            peak = max(peak, taken_by_family(process.pid))
            if time.monotonic() - began > seconds or peak > memory:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.01)
    return Measured(
        status=process.returncode,
        seconds=time.monotonic() - began,
        peak=peak,
        out=(folder / "out.txt").read_text(errors="replace"),
        err=(folder / "err.txt").read_text(errors="replace"),
    )
