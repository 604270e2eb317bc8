"""What becomes of this process when an engine has ended the interpreter of its release: the same, if somebody watches.

A check, and a command that is watched, end just as that interpreter has: a crash there looks to them exactly as one
here. Any other process goes on, and the crash is an error in it.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from biopsy import errors
from biopsy.isolation import engine_call
from biopsy.isolation.death import signal_name
from biopsy.isolation.reaper import VERDICT_VARIABLE


def ended_like(status: int, where: str) -> errors.BiopsyError:
    """End this process by this status, negative for a signal; or the error to raise, where nobody would see that.

    Its class has the name of the signal, which engines take for the kind of a failure. ``where`` names the interpreter.
    """
    if VERDICT_VARIABLE in os.environ or engine_call.is_watched():
        _end(status)
    kind = signal_name(-status) if status < 0 else "ProcessEnded"
    how = kind if status < 0 else f"status {status}"
    made: type[errors.BiopsyError] = type(kind, (errors.BiopsyError,), {})
    return made(f"{where} ended with {how}")


def _end(status: int) -> None:
    if status >= 0:
        os._exit(status)
    with suppress(OSError, ValueError):
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        time.sleep(0.1)  # it comes at once, unless this is the first process of a container
    os._exit(128 - status)
