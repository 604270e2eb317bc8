"""Ends and removes what a process of ours has left behind.

Run as a program, once that process has ended, with its list (see ``cleanup``) as standard input. Other modules use the
same functions while the process lives.

This file imports nothing of biopsy: the program starts in some 15 ms, and finds no module of anybody else.
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
"""A check, and all that it starts, carry the path of its verdict file in this; it stands in a folder of its own."""

Entry: TypeAlias = tuple[str, ...]
"""A line of the list, see ``clean_up``: a word for what it is, then what it names."""

SLOT = 1 << 14
"""Bytes of the list for each entry: two of the longest paths that Linux knows, and their identity."""
LENGTH = 4
"""Bytes at the beginning of a slot that say how long its entry is; 0 if it has none. The first slot is a heading."""

_ROUNDS = 50
"""Looks for what is to go: whoever is born, or made, between two of them is found by the next."""
_PATIENCE = 1.0
"""Seconds to wait for a lock, which who begins anew looks at for a moment; and for the end of what was killed."""
_LONGEST_RANGE = 1 << 12
"""Numbers of processes that are tried one by one, which takes some milliseconds."""
_STARTS_A_PROGRAM = 0.001
"""Seconds to wait for a process that is about to start a program: Linux shows no environment of it meanwhile."""
_NO_FULL_CIRCLE = 1.0
"""Seconds in which no machine begins as many processes and threads as it has numbers, 32,768 and more."""
_YOUNG = 1.0
"""Seconds after its beginning in which a process may be about to start the program that it was made for."""


def entries_of(descriptor: int) -> Iterator[Entry]:
    """What stands on a list."""
    for start in range(SLOT, os.fstat(descriptor).st_size, SLOT):
        length = int.from_bytes(os.pread(descriptor, LENGTH, start), "little")
        if length:
            yield tuple(os.fsdecode(part) for part in os.pread(descriptor, length, start + LENGTH).split(b"\0"))


def identity(status: os.stat_result) -> str:
    """What tells a file or folder from any other that may come to stand at its path."""
    return f"{status.st_dev}:{status.st_ino}"


def clean_up(entries: Iterable[Entry]) -> None:
    """End and remove what stands on a list.

    ``group PID BEGUN`` is a group of processes, and the start of the one that leads it; ``marked MARK`` are processes,
    see ``end_marked``; ``folder IDENTITY PATH`` is a folder (no identity: its name is known to nobody else), ``file
    IDENTITY TEMPORARY PATH`` a file that stands at one of these, ``new PATH`` one whose name is known to nobody else,
    ``back IDENTITY FROM TO`` a file of somebody else that was set aside, and ``lock PATH`` what must be had before
    anything with a name that others may use is touched: if somebody else has it, that is left as it is.
    """
    listed: dict[str, list[Entry]] = {}
    for what, *rest in entries:
        listed.setdefault(what, []).append(tuple(rest))
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
    for path, had in zip(locks, held, strict=True):
        if had:
            _remove(path)


# Processes


def processes() -> Iterator[int]:
    """The numbers of all processes, where /proc shows them."""
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 -- numbers, not paths


class Moment:
    """A moment, and the processes that have begun since then, which are found without a look at all of the machine.

    Linux gives numbers to processes in their order, and says which one it gave last.
    """

    def __init__(self) -> None:
        self._newest = _newest_process()
        self._time = time.monotonic()

    def younger(self) -> Iterable[int]:
        """Numbers among which are those of all processes that have begun since; some may be nobody's.

        If the order of numbers may have come full circle since then, or if they are too many, all there are.
        """
        newest = _newest_process()
        is_in_order = self._newest and time.monotonic() - self._time < _NO_FULL_CIRCLE
        if is_in_order and 0 <= newest - self._newest <= _LONGEST_RANGE:
            return range(self._newest + 1, newest + 1)
        return processes()


def _newest_process() -> int:
    """The number that was given to a process last; 0 where /proc does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(_content("/proc/loadavg").split()[4])
    return 0


def beginning(pid: int) -> str:
    """When a process began, in ticks since the start of the machine: with its number, that is nobody else's.

    Empty where /proc does not say, or if there is none.
    """
    with suppress(OSError, IndexError):
        return os.fsdecode(stat_of(pid)[20])
    return ""


def stat_of(pid: int) -> list[bytes]:
    """What /proc says of a process: its name, state, parent, group, session, ... Raises OSError."""
    before, _, after = _content(f"/proc/{pid}/stat").rpartition(b")")
    return [before.partition(b"(")[2], *after.split()]


def _content(path: str) -> bytes:
    """A file of /proc. Raises OSError."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- three times as fast, and asked for each process
        return file.readall()


def end_processes(is_meant: Callable[[int], bool | None], among: Callable[[], Iterable[int]] = processes) -> set[int]:
    """Kill every process but this one that is meant, until there is none; the numbers of those that were killed.

    ``is_meant`` may raise OSError for a process that has gone, and returns None for one that it has to be asked about
    again. It is asked twice, the second time while the process is held, so that its number cannot have become that of
    another one. Where processes can be held, those that were killed have ended on return, if the system lets them.
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
    """Kill a process if it still is the one that is meant; ``dying`` gets the descriptor by which it is held."""
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
    """Wait until processes that were killed have ended: on a busy machine that takes them a while."""
    end = time.monotonic() + _PATIENCE
    for held in dying:
        poll = select.poll()
        poll.register(held, select.POLLIN)
        poll.poll(max(0.0, end - time.monotonic()) * 1000)
        os.close(held)


def _end_group(leader: int, begun: str) -> None:
    """Kill a group, unless its number is that of another process by now."""
    if not begun:
        if not beginning(os.getpid()):  # here nobody can tell; elsewhere it had gone before it stood on the list
            with suppress(OSError):
                os.killpg(leader, signal.SIGKILL)
        return

    def is_member(pid: int) -> bool:
        state, _, group = stat_of(pid)[1:4]
        return int(group) == leader and state not in (b"Z", b"X")

    # As long as anybody is in the group, the number of the one that led it is given to nobody else.
    if beginning(leader) in ("", begun):
        end_processes(is_member)


def end_marked(marks: Iterable[str], among: Callable[[], Iterable[int]] = processes) -> set[int]:
    """End every process whose environment has a variable that begins like one of these, wherever it has gone since.

    Returns the numbers of those that were killed. Only where /proc shows the environment of processes.
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
    of_process = stat_of(pid)
    age = float(_content("/proc/uptime").split()[0]) - int(of_process[20]) / os.sysconf("SC_CLK_TCK")
    return int(of_process[21]) > 0 and age < _YOUNG


# Files and folders


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
    """Remove a file of this identity; without one, any plain file."""
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) if known is None else identity(status) == known:
            os.unlink(path)  # noqa: PTH108 -- words, not paths


def remove_folder(known: str, path: str) -> None:
    """Without following a link, neither at the path nor below it: ``rmtree`` goes by descriptors.

    ``known`` is its identity; nothing is removed if another one stands there. Empty: any that stands there.
    """
    for _ in range(_ROUNDS):
        if not os.path.lexists(path) or (known and not _is(known, path)):
            return
        shutil.rmtree(path, ignore_errors=True)  # who was killed a moment ago may still finish a file in it


def _taken(path: str) -> bool:
    """Take a lock, and keep it until this process ends; False if another has it, or if something else stands there."""
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
