"""How much of the machine there is for one process: its memory, against which is held what a file claims before it is
allocated, and its processors.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_UNKNOWN = 1 << 62


def memory() -> int:
    """Bytes that this process may have at most: the machine's, its container's, or its own limit (``ulimit -v``)."""
    return min(_of_the_machine(), _of_the_container(), _of_the_process())


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _of_the_machine() -> int:
    with suppress(AttributeError, ValueError, OSError):  # not on this platform
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _UNKNOWN


def _of_the_container() -> int:
    with suppress(OSError, ValueError):  # no container, or no limit: "max"
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    return _UNKNOWN


def _of_the_process() -> int:
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        return _UNKNOWN if soft == resource.RLIM_INFINITY else soft
    return _UNKNOWN
