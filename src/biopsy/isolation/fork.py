"""A fork that ends with the process that made it, however that ends."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def fork() -> tuple[int, int]:
    """As ``os.fork``: 0 in the fork, its number here; and a descriptor to be closed once the fork has ended.

    The fork is killed when this process is gone, and with it that descriptor: only where the system can send a signal
    of our choice for that, which is Linux.
    """
    alive, kept_open = os.pipe()
    try:
        parent, child = os.getpid(), os.fork()
    except OSError:
        os.close(alive)
        os.close(kept_open)
        raise
    if child:
        os.close(alive)
        return child, kept_open
    os.close(kept_open)
    _end_with(alive, parent)
    return 0, -1


def _end_with(alive: int, parent: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        with suppress(OSError):
            fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:
        os._exit(4)
