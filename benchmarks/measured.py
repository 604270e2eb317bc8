"""Run a Python program's command line, and write down how long its checks took and how much memory it used.

    python benchmarks/measured.py NOTES MARK PROGRAM ARGUMENTS...

``PROGRAM`` is a Python script, such as the one that an environment has for a command. A child process of which a word
contains ``MARK`` is a check. A line ``check SECONDS`` is written for each, from its start to its end as the program
sees it, and last ``peak MB``: the most memory this process itself has used, its children's not counted.
"""

from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def peak_mb(process: int | str = "self") -> float:
    """The most memory that a process has had resident, in MB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"the process {process} has ended")


def _watch(notes: Path, mark: str) -> None:
    """From now on, write a line for each check that has ended."""

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        started: float | None = None

        def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
            is_check = any(mark in str(word) for word in args)
            started = time.monotonic()
            super().__init__(args, *rest, **options)
            self.started = started if is_check else None

        def wait(self, timeout: float | None = None) -> int:
            status = super().wait(timeout)
            if self.started is not None:
                with notes.open("a") as stream:
                    stream.write(f"check {time.monotonic() - self.started}\n")
                self.started = None
            return status

    subprocess.Popen = Watched  # type: ignore[misc]


def main() -> None:
    """See the top of the file."""
    notes, mark = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[3:]
    sys.path.pop(0)  # this file's folder, which the program would not have
    _watch(notes, mark)
    atexit.register(_write_peak, notes, os.getpid())
    runpy.run_path(sys.argv[0], run_name="__main__")


def _write_peak(notes: Path, process: int) -> None:
    """At the end of the program, even if it ends at once; not at that of its forks."""
    if os.getpid() == process:
        with notes.open("a") as stream:
            stream.write(f"peak {peak_mb()}\n")


if __name__ == "__main__":
    main()
