"""Run a command, and write down how long it took and how much memory its largest process used.

    python benchmarks/largest_process.py LIMIT COMMAND...

It is stopped after ``LIMIT`` seconds. What is written is JSON: seconds, status (null if it was stopped), MB. This is a
program of its own, since Linux counts the memory of whoever starts a process as that process's own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time


def main() -> None:
    """See the top of the file."""
    started = time.monotonic()
    process = subprocess.Popen(
        sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    status: int | None = None
    try:
        status = process.wait(float(sys.argv[1]))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    seconds = time.monotonic() - started
    print(json.dumps([seconds, status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000]))


if __name__ == "__main__":
    main()
