"""What work takes: a command line's time and the memory of all that it starts, or the processor's time of a call."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
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


def cpu_seconds(work: Callable[[], object], *, times: int = 1) -> float:
    """The least processor time of this thread over so many calls, without the garbage of the tests before."""
    gc.disable()
    try:
        return min(_cpu_seconds_of_one(work) for _ in range(times))
    finally:
        gc.enable()


def _cpu_seconds_of_one(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
