"""``biopsy`` as a person types it: a process of its own, and how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it said on both streams."""

    status: int
    told: str


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """These variables besides those that there are; programs that stand beside ``biopsy`` are found."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}


def started(
    *words: object,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    program: Sequence[object] = (BIN / "biopsy",),
    **options: object,
) -> subprocess.Popen[str]:
    """Type a line in a folder, see ``environment``.

    It has nothing to read, and says all in ``stdout``, unless ``options`` of Popen have it otherwise.
    """
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [str(word) for word in (*program, *words)],
        **{"cwd": folder, "env": environment(variables or {}), "stdin": subprocess.DEVNULL,
           "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace", **options},
    )  # fmt: skip


def typed(*words: object, timeout: float = 120, **options: object) -> Ran:
    """Type a line, see ``started``, and wait for its end; a hang and a traceback are failures."""
    return end_of(started(*words, **options), timeout)  # type: ignore[arg-type]


def end_of(process: subprocess.Popen[str], timeout: float) -> Ran:
    """How a line that was typed ends; a hang and a traceback are failures."""
    try:
        told, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        told, _ = process.communicate()
        pytest.fail(f"it did not end within {timeout} s:\n{told}")
    assert "Traceback" not in told, told
    return Ran(process.returncode, told)


def wait_until(holds: Callable[[], object], seconds: float = 60) -> bool:
    """Whether something holds before so many seconds are over."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not been waited for."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
