"""One run of a child process, watched to its end: time, memory and output are bounded, and nothing of it is left."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from biopsy import errors
from biopsy.isolation.forks import end_group, keeps_processes, signal_group
from biopsy.isolation.groups import memory_of_session
from biopsy.isolation.output import KEPT_OUTPUT, KeptOutput

Cause = Literal["itself", "time", "memory", "stop", "answer"]
"""Why a run ended: by itself; it reached a limit; it was not wanted any more; what it answered was not understood."""

LOOK_AT_MEMORY = 0.05
"""Seconds between two looks at the memory of a process that has a limit."""

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_LAST_WAIT = 30.0  # seconds after SIGKILL: what sleeps in the kernel until then will not end
_LOOK_AT_LIMITS = 10.0  # seconds, while there is none
_LONGEST_WAIT = 3600.0  # seconds; poll() counts milliseconds in an int
_LOOK_AT_STATUS = 0.005  # seconds, where no descriptor tells of a process's end
_MOST_DRAINED = 1 << 20  # bytes read after the end, for what still writes then was not ended by us


class StillRunningError(errors.BiopsyError):
    """A process does not end, not even by SIGKILL."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not end, not even by SIGKILL")
        self.pid = pid


@dataclass(frozen=True)
class Limits:
    """What one run may use: wall time in seconds, resident memory of all its processes in bytes; None for no limit."""

    seconds: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit status, or minus the signal; what ended it; what it printed, its middle cut if long.

    ``left`` is the number of processes that it had left in the background, and that were ended with it.
    """

    status: int
    cause: Cause
    output: bytes
    left: int = 0


def lets_processes_stay(ended: Ended | None) -> bool:
    """Whether what a run has left in the background stays: if the user wants that, and the run ended by itself."""
    return ended is not None and ended.cause == "itself" and keeps_processes()


class Stop:
    """Tells a run from another thread that its answer is not wanted any more."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """Readable once the run is to stop."""
        return self._read

    @property
    def is_set(self) -> bool:
        """Whether the run was asked to stop."""
        return bool(readable([self._read], 0))

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


def attend(
    running: Running,
    output: int,
    limits: Callable[[], Limits],
    stop: Stop | None = None,
    *,
    kept: int = KEPT_OUTPUT,
) -> Ended:
    """Watch a run until it has ended, and end it if it reaches a limit or is not wanted any more.

    ``limits`` are asked again and again: a limit may become known only while it runs. ``output`` is the end to read of
    the pipe that it prints into, ``kept`` how many bytes of its beginning and its end are kept.

    Whatever happens here, it has ended afterwards; raises StillRunningError if that is not possible.
    """
    watch = _Watch(running, output, limits, stop, KeptOutput(kept))
    try:
        return watch.until_the_end()
    except BaseException:
        end_group(running.pid)
        raise


class _Watch:
    """The state of ``attend``: who is listened to, and what has been decided."""

    def __init__(
        self, running: Running, output: int, limits: Callable[[], Limits], stop: Stop | None, kept: KeptOutput
    ) -> None:
        self._running = running
        self._limits = limits
        self._stop = stop
        self._output: int | None = output
        self._kept = kept
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
        sources = (self._running.fileno(), self._output, None if stop is None else stop.fileno())
        ready = readable([source for source in sources if source is not None], self._patience())
        if self._output in ready:
            self._read()
        if stop is not None and stop.fileno() in ready:
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
            times.append(LOOK_AT_MEMORY)
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
                raise StillRunningError(self._running.pid)
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


def readable(descriptors: Sequence[int], seconds: float) -> set[int]:
    """Those that can be read, once one can or the time is up; of any number, which select() cannot tell."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * min(seconds, _LONGEST_WAIT)))}
