"""One run of a check, watched to its end: time, memory and output are bounded, and nothing of it is left behind."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from biopsy import errors
from biopsy.isolation import cleanup

KEPT_OUTPUT = 8 << 20
"""Bytes of the beginning, and as many of the end, of what a check prints that are looked at."""

Cause = Literal["itself", "time", "memory", "stop"]
"""Why a run ended: by itself, or because a limit was reached, or because nobody wants to know any more."""

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_LAST_WAIT = 30.0  # seconds after SIGKILL: what sleeps in the kernel until then will not end
_LOOK_AT_MEMORY = 0.05  # seconds
_LOOK_AT_LIMITS = 10.0  # seconds, while there is none
_LONGEST_WAIT = 3600.0  # seconds; poll() counts milliseconds in an int
_LOOK_AT_STATUS = 0.005  # seconds, where no descriptor tells of a process's end
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""What Python prints comes in its order, as on a terminal: or a traceback is followed by what was printed before it."""
_MOST_DRAINED = 1 << 20  # bytes read after the end, for what still writes then was not ended by us


@dataclass(frozen=True)
class Limits:
    """What one run may use: wall time in seconds, resident memory of all its processes in bytes; None for no limit."""

    seconds: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit status, or minus the signal; what ended it; what it printed, its middle cut if long."""

    status: int
    cause: Cause
    output: bytes


class Stop:
    """Tells a run from another thread that its answer is not wanted any more."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """Readable once the run is to stop."""
        return self._read

    def set(self) -> None:
        """Ask the run to stop."""
        os.write(self._write, b".")

    def close(self) -> None:
        """Free the descriptors: the run has ended."""
        os.close(self._read)
        os.close(self._write)


class Running(Protocol):
    """A process that was started, leader of its own group. ``patient``: it may clean up when told to end."""

    pid: int
    patient: bool

    def fileno(self) -> int | None:
        """Readable once it has ended; None where the platform has no such thing."""

    def status(self) -> int | None:
        """Its exit status, or minus the signal, if it has ended. Its group is gone by then."""


class Process:
    """A command, started in a session of its own, that prints into ``output`` (a descriptor)."""

    patient = True

    def __init__(self, words: Sequence[str], output: int, told: Path) -> None:
        self._struck = False
        self._popen = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**_IN_ORDER, **os.environ, cleanup.VERDICT_VARIABLE: str(told)},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        cleanup.register("group", str(self.pid))
        self._end = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        sacrifice(self.pid)

    def fileno(self) -> int | None:
        """Readable once the command has ended."""
        return self._end

    def status(self) -> int | None:
        """Its status if it has ended; whoever it left behind in its group is ended first, while its number is ours."""
        if self._end is not None and not _readable([self._end], 0):
            return None
        if self._end is None and self._popen.poll() is None:
            return None
        end_group(self.pid)
        self._strike()
        return self._popen.wait()

    def _strike(self) -> None:
        if not self._struck:
            self._struck = True
            cleanup.strike("group", str(self.pid))

    def close(self) -> None:
        """Free the descriptor."""
        self._strike()
        if self._end is not None:
            os.close(self._end)


class Pipe:
    """What a check prints goes through here: ``reading`` is ours, ``writing`` is handed on."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reading)
        self.handed_on()

    def handed_on(self) -> None:
        """Close the end to write: whoever prints has one of its own by now."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


def attend(running: Running, output: int, limits: Callable[[], Limits], stop: Stop | None = None) -> Ended:
    """Watch a run until it has ended, and end it if it reaches a limit or is not wanted any more.

    ``limits`` are asked again and again: a limit may become known only while it runs. ``output`` is the end to read of
    the pipe that it prints into. Whatever happens here, it has ended afterwards.
    """
    watch = _Watch(running, output, limits, stop)
    try:
        return watch.until_the_end()
    except BaseException:
        end_group(running.pid)
        raise


class _Watch:
    """The state of ``attend``: who is listened to, and what has been decided."""

    def __init__(self, running: Running, output: int, limits: Callable[[], Limits], stop: Stop | None) -> None:
        self._running = running
        self._limits = limits
        self._stop = stop
        self._output: int | None = output
        self._kept = _Kept()
        self._cause: Cause = "itself"
        self._started = time.monotonic()
        self._end_by: float | None = None  # when the next, harder step is due, once it was told to end
        self._killed = False

    def until_the_end(self) -> Ended:
        while (status := self._running.status()) is None:
            self._wait()
            self._decide()
        self._read_what_is_left()
        return Ended(status, self._cause, self._kept.all())

    def _wait(self) -> None:
        stop = self._stop if self._cause == "itself" else None
        listened = (self._running.fileno(), self._output, None if stop is None else stop.fileno())
        readable = _readable([one for one in listened if one is not None], self._patience())
        if self._output in readable:
            self._read()
        if stop is not None and stop.fileno() in readable:
            self._end_because("stop")

    @property
    def _deadline(self) -> float | None:
        if self._cause != "itself":
            return self._end_by
        seconds = self._limits().seconds
        return None if seconds is None else self._started + seconds

    def _patience(self) -> float:
        deadline = self._deadline
        times = [_LOOK_AT_LIMITS] if deadline is None else [max(0.0, deadline - time.monotonic())]
        if self._limits().memory is not None and self._cause == "itself":
            times.append(_LOOK_AT_MEMORY)
        if self._running.fileno() is None:
            times.append(_LOOK_AT_STATUS)
        return min(times)

    def _decide(self) -> None:
        deadline = self._deadline
        if deadline is not None and time.monotonic() >= deadline:
            if self._cause == "itself":
                self._end_because("time")
            elif not self._killed:
                self._kill()
            else:
                raise errors.CheckError(f"the check (process {self._running.pid}) does not end, not even by SIGKILL")
        limit = self._limits().memory
        if limit is not None and self._cause == "itself" and memory_of_session(self._running.pid) > limit:
            self._end_because("memory")

    def _end_because(self, cause: Cause) -> None:
        self._cause = cause
        if self._running.patient and cause != "memory":
            signal_group(self._running.pid, signal.SIGTERM)
            self._end_by = time.monotonic() + _GRACE
        else:
            self._kill()

    def _kill(self) -> None:
        end_group(self._running.pid)
        self._killed = True
        self._end_by = time.monotonic() + _LAST_WAIT

    def _read(self) -> None:
        assert self._output is not None
        data = os.read(self._output, 1 << 16)
        self._kept.add(data)
        if not data:
            self._output = None  # everyone has closed it: it would be readable for ever

    def _read_what_is_left(self) -> None:
        before = self._kept.seen
        with suppress(BlockingIOError):
            while self._output is not None and self._kept.seen - before < _MOST_DRAINED:
                self._read()


class _Kept:
    """The beginning and the end of what was printed."""

    def __init__(self) -> None:
        self.seen = 0
        self._start = bytearray()
        self._end = bytearray()

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = KEPT_OUTPUT - len(self._start)
        self._start += data[:room]
        self._end += data[room:] if room > 0 else data
        if len(self._end) > 2 * KEPT_OUTPUT:
            del self._end[:-KEPT_OUTPUT]

    def all(self) -> bytes:
        if self.seen <= len(self._start) + KEPT_OUTPUT:
            return bytes(self._start + self._end)
        return bytes(self._start) + b"\n[... cut by biopsy ...]\n" + bytes(self._end[-KEPT_OUTPUT:])


def _readable(descriptors: Sequence[int], seconds: float) -> set[int]:
    """Those that can be read, once one can or the time is up; of any number, which select() cannot tell."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * min(seconds, _LONGEST_WAIT)))}


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group."""
    with suppress(ProcessLookupError, PermissionError):  # everyone has gone; macOS says so by EPERM
        os.killpg(leader, number)


def end_group(leader: int) -> None:
    """End a process and its group at once."""
    signal_group(leader, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(leader, signal.SIGKILL)  # it may not lead a group yet


def memory_of_session(leader: int) -> int:
    """Resident bytes of all processes of a session; pages that they share count for each."""
    total = 0
    for pid in cleanup.processes():
        with suppress(OSError, ValueError, IndexError):
            # What stands after the name in brackets: state, parent, group, session, ...; the 22nd is the resident set.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == leader:
                total += int(fields[21]) * _PAGE
    return total


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sacrifice(pid: int) -> None:
    """Where memory runs out, have the system end a check rather than what waits for it."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("800")
