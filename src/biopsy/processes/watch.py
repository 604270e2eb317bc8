"""One run of a child process, watched to its end: time, memory and output are bounded, nothing of it is left, and
its end is told in words.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from biopsy import errors
from biopsy.processes.forks import end_group, keeps_processes, signal_group
from biopsy.processes.own_process import taken_by_family

# What a child process prints: the pipe it prints into, and the bounded part of it that is kept.

KEPT_OUTPUT = 8 << 20
"""Bytes of the beginning, and as many of the end, of what a process prints that are kept."""


class Pipe:
    """A pipe that a child prints into: ``reading`` is ours and never blocks, ``writing`` is handed on."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reading)
        self.handed_on()

    def handed_on(self) -> None:
        """Close the end to write: the child has its own by now."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


class KeptOutput:
    """The first and the last ``size`` bytes of what was printed; ``seen`` counts all of them."""

    def __init__(self, size: int = KEPT_OUTPUT) -> None:
        self.seen = 0
        self._size = size
        self._start = bytearray()
        self._end = bytearray()

    def add(self, data: bytes) -> None:
        """Take what was printed next."""
        self.seen += len(data)
        room = self._size - len(self._start)
        self._start += data[:room]
        self._end += data[room:] if room > 0 else data
        if len(self._end) > 2 * self._size:
            del self._end[: -self._size]

    def all(self) -> bytes:
        """What is kept; a line says where something was cut."""
        if self.seen <= len(self._start) + self._size:
            return bytes(self._start + self._end)
        return bytes(self._start) + b"\n[... cut by biopsy ...]\n" + bytes(self._end[-self._size :])


Cause = Literal["itself", "time", "memory", "stop", "answer"]
"""Why a run ended: by itself; it reached a limit; it was not wanted any more; what it answered was not understood."""

LOOK_AT_MEMORY = 0.05
"""Seconds between two looks at the memory of a process that has a limit."""

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_LAST_WAIT = 30.0  # seconds after SIGKILL: what sleeps in the kernel until then will not end
_LOOK_AT_LIMITS = 10.0  # seconds, while there is none
_LONGEST_WAIT = 3600.0  # seconds; poll() counts milliseconds in an int
_LOOK_AT_STATUS = 0.005  # seconds, where no descriptor tells of a process's end
_AT_ONCE = 1 << 16  # bytes read at once, as many as a pipe holds
_MOST_READS_AFTER_THE_END = 16  # what still writes then was not ended by us


class StillRunningError(errors.BiopsyError):
    """A process does not end, not even by SIGKILL."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not end, not even by SIGKILL")
        self.pid = pid


@dataclass(frozen=True)
class Limits:
    """What one run may use: wall time in seconds, memory of all its processes in bytes; None for no limit.

    Memory is what ``taken_by_family`` counts: files that are mapped are none.
    """

    seconds: float | None = None
    memory: int | None = None

    def until_due(self, started: float, memory_every: float = LOOK_AT_MEMORY) -> float | None:
        """Seconds until what began then (of ``time.monotonic``) may have reached a limit; None if it never does."""
        left = None if self.seconds is None else max(0.0, started + self.seconds - time.monotonic())
        looks = (left, None if self.memory is None else memory_every)
        return min((seconds for seconds in looks if seconds is not None), default=None)

    def reached(self, started: float, memory: Callable[[], int]) -> Literal["time", "memory"] | None:
        """The limit that is reached by what began then, and has taken so much ``memory``."""
        if self.seconds is not None and time.monotonic() >= started + self.seconds:
            return "time"
        return "memory" if self.memory is not None and memory() > self.memory else None


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
    printed = KeptOutput(kept)
    ended = Watch(running, limits, {output: printed.add}, stop).until()
    assert ended is not None
    return Ended(*ended, printed.all())


class Watch:
    """Who is listened to while a process runs, and what has been decided.

    ``takers`` get what comes out of descriptors that never block, and b"" at the end; ``unsent`` goes into one.
    """

    def __init__(
        self,
        running: Running,
        limits: Callable[[], Limits],
        takers: Mapping[int, Callable[[bytes], object]],
        stop: Stop | None = None,
        unsent: tuple[int, bytearray] = (-1, bytearray()),
    ) -> None:
        self._running = running
        self._limits = limits
        self._takers = dict(takers)
        self._stop = stop
        self._into, self._unsent = unsent
        self._cause: Cause = "itself"
        self._started = time.monotonic()
        self._end_by = 0.0  # when the next, harder step is due, once it was told to end
        self._killed = False

    def until(self, is_over: Callable[[], bool] = lambda: False) -> tuple[int, Cause] | None:
        """The status of the process and why it has ended; None if it has not, once ``is_over`` says so."""
        try:
            while (status := self._running.status()) is None:
                if self._cause == "itself" and is_over():
                    return None
                self._wait()
                if self._cause == "itself":
                    cause = self._limits().reached(self._started, partial(taken_by_family, self._running.pid))
                    if cause is not None:
                        self._end_because(cause, at_once=cause == "memory")
                elif time.monotonic() >= self._end_by:
                    if self._killed:
                        raise StillRunningError(self._running.pid)
                    self._end_because(self._cause, at_once=True)
            for descriptor in list(self._takers):
                with suppress(BlockingIOError):
                    for _ in range(_MOST_READS_AFTER_THE_END):
                        self._read(descriptor)
            return status, self._cause
        except BaseException:
            end_group(self._running.pid)
            raise

    def _wait(self) -> None:
        stop = self._stop if self._cause == "itself" else None
        poll = select.poll()
        for source in (self._running.fileno(), *self._takers, None if stop is None else stop.fileno()):
            if source is not None:
                poll.register(source, select.POLLIN)
        if self._unsent:
            poll.register(self._into, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(_milliseconds(self._patience()))}
        for descriptor in ready & set(self._takers):
            self._read(descriptor)
        if self._unsent and self._into in ready:
            try:
                del self._unsent[: os.write(self._into, self._unsent)]
            except OSError:  # it has died, which its status will tell
                self._unsent = bytearray()
        if stop is not None and stop.fileno() in ready:
            self._end_because("stop")

    def _patience(self) -> float:
        due: float | None = max(0.0, self._end_by - time.monotonic())
        if self._cause == "itself":
            due = self._limits().until_due(self._started)
            due = _LOOK_AT_LIMITS if due is None else min(due, _LOOK_AT_LIMITS)
        assert due is not None
        return due if self._running.fileno() is not None else min(due, _LOOK_AT_STATUS)

    def _end_because(self, cause: Cause, *, at_once: bool = False) -> None:
        self._cause = cause
        self._killed = at_once or not self._running.patient
        if self._killed:
            end_group(self._running.pid)
        else:
            signal_group(self._running.pid, signal.SIGTERM)
        self._end_by = time.monotonic() + (_LAST_WAIT if self._killed else _GRACE)

    def _read(self, descriptor: int) -> None:
        if descriptor in self._takers:
            data = os.read(descriptor, _AT_ONCE)
            self._takers[descriptor](data)
            if not data:
                del self._takers[descriptor]  # everyone has closed it: it would be readable for ever


def readable(descriptors: Sequence[int], seconds: float) -> set[int]:
    """Those that can be read, once one can or the time is up; of any number, which select() cannot tell."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(_milliseconds(seconds))}


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * min(seconds, _LONGEST_WAIT))


# What is to be told of the end of a process that an engine worked in.

_MOST_SHOWN = 2000  # bytes of what a dying engine printed


def signal_name(number: int) -> str:
    """What a signal is called: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def engine_death(engine: str, stage: errors.Stage | None, ended: Ended) -> errors.BiopsyError:
    """The error that tells of a process that has ended without a result of ``engine``, a spec.

    ``stage`` is what the engine was last asked for, None if it had not been given the model: then it has not failed on
    it.
    """
    printed = ended.output[-_MOST_SHOWN:].decode(errors="replace").strip()
    quoted = f"; it printed:\n{printed}" if printed else ""
    how = f"ended with {signal_name(-ended.status) if ended.status < 0 else f'status {ended.status}'}"
    if ended.cause == "answer":
        return errors.BiopsyError(f"the process of {engine} gave an answer that is not understood{quoted}")
    if stage is None:
        how = "took too long to start" if ended.cause == "time" else how
        return errors.BiopsyError(f"the process of {engine} {how}, before it looked at the model{quoted}")
    name = engine.partition(":")[0]
    if ended.cause == "time":
        return errors.EngineFailure(f"{engine} took too long to {stage}", engine=name, stage=stage, kind="Timeout")
    if ended.status < 0:
        kind = signal_name(-ended.status)
        message = f"{engine} ended its process with {kind}{quoted}"
        return errors.EngineFailure(message, engine=name, stage=stage, kind=kind)
    return errors.BiopsyError(f"the process of {engine} {how} without a result{quoted}")
