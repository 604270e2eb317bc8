"""Ends processes and removes files that a process of biopsy has left behind.

It is run as a program after that process has ended, with its list (see ``cleanup``) as standard input. Other modules
use the same functions while the process is alive.

This file does not import biopsy, so that the program starts in some 15 ms and cannot import other packages' modules.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

VERDICT_VARIABLE = "BIOPSY_VERDICT"
"""Environment variable of a check and all that it starts: the path of its verdict file, in a folder of its own."""

Entry: TypeAlias = tuple[str, ...]
"""An entry of the list, see ``clean_up``: its kind, then its values."""

SLOT = 1 << 14
"""Bytes of the list for each entry: two of the longest paths of Linux, and their identity."""
LENGTH = 4
"""Bytes at the beginning of a slot that hold the length of its entry, 0 if it is empty. The first slot is a heading."""

_ROUNDS = 50
"""The most searches for processes or files: those made during one search are found by the next."""
_PATIENCE = 1.0
"""Seconds to wait for a lock, which a resuming process may hold for a moment, and for the end of killed processes."""
_LONGEST_RANGE = 1 << 12
"""The most process numbers that are tried one by one, which takes some milliseconds."""
_STARTS_A_PROGRAM = 0.001
"""Seconds to wait for a process that is about to start a program: Linux does not show its environment meanwhile."""
_NO_FULL_CIRCLE = 1.0
"""Seconds in which no machine starts as many processes and threads as it has numbers, 32,768 or more."""
_YOUNG = 1.0
"""Seconds after its start in which a process may still be about to start the program that it was made for."""


def entries_of(descriptor: int) -> Iterator[Entry]:
    """The entries of a list."""
    for start in range(SLOT, os.fstat(descriptor).st_size, SLOT):
        length = int.from_bytes(os.pread(descriptor, LENGTH, start), "little")
        if length:
            yield tuple(os.fsdecode(part) for part in os.pread(descriptor, length, start + LENGTH).split(b"\0"))


def identity(status: os.stat_result) -> str:
    """What distinguishes a file or folder from another one at the same path."""
    return f"{status.st_dev}:{status.st_ino}"


def clean_up(entries: Iterable[Entry]) -> None:
    """End the processes and remove the files of a list.

    The kinds of entries:

        group PID BEGUN               a group of processes, and the start of its leader
        marked MARK                   processes, see ``end_marked``
        folder IDENTITY PATH          a folder; without an identity, one with a random name
        file IDENTITY TEMPORARY PATH  a file at one of these paths
        new PATH                      a file with a random name
        back IDENTITY FROM TO         a file that was set aside, to be put back
        lock PATH                     a lock that is needed to touch anything without a random name
    """
    listed: dict[str, list[Entry]] = {}
    for kind, *values in entries:
        listed.setdefault(kind, []).append(tuple(values))
    for number, begun in listed.get("group", ()):
        _end_group(int(number), begun)
    end_marked(mark for (mark,) in listed.get("marked", ()))
    locks = [path for (path,) in listed.get("lock", ())]
    held = [_taken(path) for path in locks]
    for known, temporary, path in listed.get("file", ()):
        for place in {temporary, path} if all(held) else {temporary} - {path}:
            _remove(place, known)
    for (path,) in listed.get("new", ()):
        _remove(path)
    for known, path in listed.get("folder", ()):
        if not known or all(held):
            remove_folder(known, path)
    _put_back(listed.get("back", ()) if all(held) else ())
    for path, is_held in zip(locks, held, strict=True):
        if is_held:
            _remove(path)


def processes() -> Iterator[int]:
    """The numbers of all processes; none without /proc."""
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 -- numbers, not paths


class Moment:
    """A moment, to find the processes that were started after it without looking at all processes.

    Linux gives ascending numbers to processes, and shows the last one.
    """

    def __init__(self) -> None:
        self._newest = _newest_process()
        self._time = time.monotonic()

    def younger(self) -> Iterable[int]:
        """Numbers that include those of all processes started since; some may be unused.

        They are the numbers of all processes if the numbers may have wrapped around since, or are too many.
        """
        newest = _newest_process()
        is_in_order = self._newest and time.monotonic() - self._time < _NO_FULL_CIRCLE
        if is_in_order and 0 <= newest - self._newest <= _LONGEST_RANGE:
            return range(self._newest + 1, newest + 1)
        return processes()


def _newest_process() -> int:
    """The number of the newest process; 0 if /proc does not show it."""
    with suppress(OSError, ValueError, IndexError):
        return int(_content("/proc/loadavg").split()[4])
    return 0


def beginning(pid: int) -> str:
    """When a process was started, in ticks since the start of the machine, which with its number identifies it.

    Empty if there is no such process, or without /proc.
    """
    with suppress(OSError, IndexError):
        return os.fsdecode(stat_of(pid)[20])
    return ""


def stat_of(pid: int) -> list[bytes]:
    """The fields of a process in /proc: name, state, parent, group, session, ... Raises OSError."""
    before, _, after = _content(f"/proc/{pid}/stat").rpartition(b")")
    return [before.partition(b"(")[2], *after.split()]


def _content(path: str) -> bytes:
    """A file of /proc. Raises OSError."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- three times as fast, and used for each process
        return file.readall()


def end_processes(is_meant: Callable[[int], bool | None], among: Callable[[], Iterable[int]] = processes) -> set[int]:
    """Kill every process but this one that is meant, until there is none left; returns their numbers.

    ``is_meant`` may raise OSError for a process that has ended, and returns None for one that it must be asked about
    again. It is called twice, the second time while a pidfd holds the process, so that its number cannot have been
    given to another one. With pidfd, killed processes have ended on return, if the system lets them.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        is_over = True
        dying: list[int] = []
        for pid in among():
            with suppress(OSError):
                meant = pid != os.getpid() and is_meant(pid)
                if meant is None:
                    is_over = False
                    time.sleep(_STARTS_A_PROGRAM)
                elif meant and _kill(pid, is_meant, dying):
                    killed.add(pid)
                    is_over = False
        _await_ends(dying)
        if is_over:
            break
    return killed


def _kill(pid: int, is_meant: Callable[[int], bool | None], dying: list[int]) -> bool:
    """Kill a process if it is still meant; its pidfd is added to ``dying``."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, signal.SIGKILL)
        return True
    held = os.pidfd_open(pid)
    try:
        if not is_meant(pid):
            os.close(held)
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except OSError:
        os.close(held)
        raise
    dying.append(held)
    return True


def _await_ends(dying: list[int]) -> None:
    """Wait until killed processes have ended, which takes a while on a busy machine; closes their descriptors."""
    end = time.monotonic() + _PATIENCE
    for held in dying:
        poll = select.poll()
        poll.register(held, select.POLLIN)
        poll.poll(max(0.0, end - time.monotonic()) * 1000)
        os.close(held)


def _end_group(leader: int, begun: str) -> None:
    """Kill a group, unless its number has been given to another process since."""
    if not begun:
        if not beginning(os.getpid()):  # without /proc; with it, the leader had ended before it was listed
            with suppress(OSError):
                os.killpg(leader, signal.SIGKILL)
        return

    def is_member(pid: int) -> bool:
        state, _, group = stat_of(pid)[1:4]
        return int(group) == leader and state not in (b"Z", b"X")

    # As long as a process is in the group, the number of its leader is not given to another process.
    if beginning(leader) in ("", begun):
        end_processes(is_member)


def end_marked(marks: Iterable[str], among: Callable[[], Iterable[int]] = processes) -> set[int]:
    """End every process whose environment has a variable that begins with one of these marks; returns their numbers.

    Does nothing if /proc does not show the environment of processes.
    """
    beginnings = [b"\0" + os.fsencode(mark) for mark in marks]

    def is_marked(pid: int) -> bool | None:
        environment = b"\0" + _content(f"/proc/{pid}/environ")
        if environment == b"\0" and _may_be_starting_a_program(pid):
            return None
        return any(beginning in environment for beginning in beginnings)

    return end_processes(is_marked, among) if beginnings else set()


def _may_be_starting_a_program(pid: int) -> bool:
    """Whether a process without an environment may have one in a moment: it is young, and has memory."""
    fields = stat_of(pid)
    age = float(_content("/proc/uptime").split()[0]) - int(fields[20]) / os.sysconf("SC_CLK_TCK")
    return int(fields[21]) > 0 and age < _YOUNG


def _put_back(entries: Iterable[Entry]) -> None:
    for known, aside, path in entries:
        if _is(known, aside) and not os.path.lexists(path):
            with suppress(OSError):
                os.rename(aside, path)  # noqa: PTH104 -- words, not paths


def _is(known: str, path: str) -> bool:
    with suppress(OSError):
        return identity(os.lstat(path)) == known
    return False


def _remove(path: str, known: str | None = None) -> None:
    """Remove a file with this identity; without one, any plain file."""
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) if known is None else identity(status) == known:
            os.unlink(path)  # noqa: PTH108 -- words, not paths


def remove_folder(known: str, path: str) -> None:
    """Remove a folder without following links, at the path or below it: ``rmtree`` works by descriptors.

    Nothing is removed if its identity is not ``known``; if that is empty, any folder there is removed.
    """
    for _ in range(_ROUNDS):
        if not os.path.lexists(path) or (known and not _is(known, path)):
            return
        shutil.rmtree(path, ignore_errors=True)  # again: a process that is being killed may still write a file into it


def _taken(path: str) -> bool:
    """Take a lock until this process ends; False if another process has it, or this user has no such lock file."""
    import fcntl

    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError:
            return False
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            return False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(identity(status), path):
                return True
        os.close(descriptor)
        time.sleep(0.01)
    return False


if __name__ == "__main__":
    clean_up(list(entries_of(0)))
