"""The end of a process of ours: nothing that is loaded is taken apart."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process with a status, once all is written and what was registered for its end is done.

    Modules and engines stay as they are: nobody needs them taken apart, which takes some 30 ms and has crashed engines.
    Threads that still run end with the process. What cannot be written any more, as into a closed pipe, is dropped.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        atexit._run_exitfuncs()
    finally:
        os._exit(status)
