"""The end of a process that an engine works in: bringing it about, its last words, and what is to be told of it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import IO, TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    import subprocess

_MOST_SHOWN = 2000  # bytes of what a dying engine printed


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and what it has started, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def printed_tail(printed: IO[bytes]) -> str:
    """The end of what a process has printed into a file."""
    printed.seek(0, os.SEEK_END)
    printed.seek(max(0, printed.tell() - _MOST_SHOWN))
    return printed.read().decode(errors="replace").strip()


def signal_name(number: int) -> str:
    """What a signal is called: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def what_happened(engine: str, stage: errors.Stage | None, status: int | None, printed: str = "") -> errors.BiopsyError:
    """The error that tells of a process that has ended without a result of ``engine``, a spec.

    ``stage`` is what the engine was last asked for, None if it had not been given the model: then it has not failed on
    it. ``status`` is the exit status, negative for a signal, None if the process was ended because it took too long.
    """
    name = engine.partition(":")[0]
    quoted = f"; it printed:\n{printed}" if printed else ""
    if stage is None:
        how = "took too long to start" if status is None else f"ended with {_end(status)}"
        return errors.BiopsyError(f"the process of {engine} {how}, before it looked at the model{quoted}")
    if status is None:
        return errors.EngineFailure(f"{engine} took too long to {stage}", engine=name, stage=stage, kind="Timeout")
    if status < 0:
        kind = signal_name(-status)
        message = f"{engine} ended its process with {kind}{quoted}"
        return errors.EngineFailure(message, engine=name, stage=stage, kind=kind)
    return errors.BiopsyError(f"the process of {engine} ended with status {status} without a result{quoted}")


def _end(status: int) -> str:
    return signal_name(-status) if status < 0 else f"status {status}"
