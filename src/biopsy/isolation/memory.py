"""How much of the machine there is for one process, its memory and its processors, and how much memory it has taken."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_UNKNOWN = 1 << 62
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def memory() -> int:
    """Bytes that this process may have at most: the machine's, its container's, or its own limit (``ulimit -v``)."""
    return min(_of_the_machine(), _of_the_container(), _of_the_process())


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def taken_by(pid: int) -> int:
    """Resident bytes of a process that stand in no file; 0 if nobody tells, as where there is no ``/proc``.

    Weights that are mapped from their file do not count, nor does address space that was only reserved.
    """
    with suppress(OSError, ValueError, IndexError):
        resident, shared = Path(f"/proc/{pid}/statm").read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE
    return 0


def taken_by_family(pid: int) -> int:
    """The same of a process and of those that it has started, and they; what forks share counts for each."""
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        total += taken_by(each)
        with suppress(OSError, ValueError):  # it may end at any moment, as may each of its threads
            for thread in Path(f"/proc/{each}/task").iterdir():
                waiting += map(int, (thread / "children").read_bytes().split())
    return total


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
