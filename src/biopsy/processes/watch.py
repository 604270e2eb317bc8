"""Watches a child process to its end, within limits of time, memory and output, and leaves nothing of it behind."""

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

KEPT_OUTPUT = 8 << 20
"""Bytes kept of the beginning of a process's output, and as many of the end."""


class Pipe:
    """A pipe that a child prints into: ``reading`` is ours and never blocks, ``writing`` is the child's."""

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
        self.close_writing()

    def close_writing(self) -> None:
        """Close our copy of ``writing``, since the child has its own now."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


class KeptOutput:
    """The first and the last ``size`` bytes of an output; ``seen`` counts all its bytes."""

    def __init__(self, size: int = KEPT_OUTPUT) -> None:
        self.seen = 0
        self._size = size
        self._start = bytearray()
        self._end = bytearray()

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self.seen += len(data)
        room = self._size - len(self._start)
        self._start += data[:room]
        self._end += data[room:] if room > 0 else data
        if len(self._end) > 2 * self._size:
            del self._end[: -self._size]

    def all(self) -> bytes:
        """The kept bytes; a line marks where something was cut."""
        if self.seen <= len(self._start) + self._size:
            return bytes(self._start + self._end)
        return bytes(self._start) + b"\n[... cut by biopsy ...]\n" + bytes(self._end[-self._size :])


Cause = Literal["itself", "time", "memory", "stop", "answer"]
"""Why a run ended: by itself; at a limit; it was not wanted any more; its answer was invalid."""

LOOK_AT_MEMORY = 0.05
"""Seconds between two looks at the memory of a process that has a limit."""

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_LAST_WAIT = 30.0  # seconds after SIGKILL: a process that sleeps in the kernel for longer will not end
_LOOK_AT_LIMITS = 10.0  # seconds between looks at the limits while there are none
_LONGEST_WAIT = 3600.0  # seconds; poll() counts milliseconds in an int
_LOOK_AT_STATUS = 0.005  # seconds between looks at the status on a platform without pidfd
_AT_ONCE = 1 << 16  # bytes to read at a time, as many as a pipe holds
_MOST_READS_AFTER_THE_END = 16  # since a process that was not ended may go on writing


class StillRunningError(errors.BiopsyError):
    """A process that does not end, not even by SIGKILL."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not end, not even by SIGKILL")
        self.pid = pid


@dataclass(frozen=True)
class Limits:
    """The limits of one run: wall time in seconds, memory of all its processes in bytes; None for no limit.

    Memory is counted by ``taken_by_family``, without mapped files.
    """

    seconds: float | None = None
    memory: int | None = None

    def until_due(self, started: float) -> float | None:
        """Seconds until the limits must be looked at; None without limits. ``started`` is of ``time.monotonic``."""
        remaining = None if self.seconds is None else max(0.0, started + self.seconds - time.monotonic())
        looks = (remaining, None if self.memory is None else LOOK_AT_MEMORY)
        return min((seconds for seconds in looks if seconds is not None), default=None)

    def reached(self, started: float, memory: Callable[[], int]) -> Literal["time", "memory"] | None:
        """The limit that is reached by a run that ``started`` then and takes this much ``memory``; None if none is."""
        if self.seconds is not None and time.monotonic() >= started + self.seconds:
            return "time"
        return "memory" if self.memory is not None and memory() > self.memory else None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended: its exit status, or minus the signal; the cause; its output, cut in the middle if long.

    ``left`` is the number of processes that it left in the background, and that were ended with it. ``pid`` was its
    number.
    """

    status: int
    cause: Cause
    output: bytes
    left: int = 0
    pid: int = 0


def lets_processes_stay(ended: Ended | None) -> bool:
    """Whether processes that a run left in the background stay: if the user wants it and the run ended by itself."""
    return ended is not None and ended.cause == "itself" and keeps_processes()


class Stop:
    """Asks a run, from another thread, to stop, since its answer is not wanted any more."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """A descriptor that is readable once the run shall stop."""
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
    """A running process that leads a group. ``patient``: it gets time to clean up when it is to end."""

    pid: int
    patient: bool

    def fileno(self) -> int | None:
        """A descriptor that is readable once it has ended; None on a platform without pidfd."""

    def status(self) -> int | None:
        """Its exit status, or minus the signal, if it and its group have ended, else None."""


def attend(
    running: Running,
    output: int,
    limits: Callable[[], Limits],
    stop: Stop | None = None,
    *,
    kept: int = KEPT_OUTPUT,
) -> Ended:
    """Watch a run until it has ended, and end it if it reaches a limit or is to stop.

    ``limits`` is called repeatedly: a limit may become known only during the run. ``output`` is the reading end of its
    pipe; ``kept`` bytes of its beginning, and of its end, are kept.

    The run has ended afterwards, even if something is raised; StillRunningError if it cannot be ended.
    """
    printed = KeptOutput(kept)
    ended = Watch(running, limits, {output: printed.add}, stop).until()
    assert ended is not None
    return Ended(status=ended[0], cause=ended[1], output=printed.all(), pid=running.pid)


class Watch:
    """Watches a process, reads from its descriptors and writes to one.

    ``takers`` are called with the bytes that arrive at non-blocking descriptors, and with b"" at the end; ``unsent`` is
    a descriptor and the bytes to write into it.
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
        self._end_by = 0.0  # when to kill it after SIGTERM, or to give up after SIGKILL
        self._killed = False

    def until(self, is_over: Callable[[], bool] = lambda: False) -> tuple[int, Cause] | None:
        """The status of the process and the cause of its end; None if ``is_over`` returns True before."""
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
            except OSError:  # it has died, which its status will show
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
                del self._takers[descriptor]  # closed by all writers, it would be readable for ever


def readable(descriptors: Sequence[int], seconds: float) -> set[int]:
    """The readable ones of some descriptors, after waiting at most these seconds for the first; unlike select(), for
    descriptors with any number.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(_milliseconds(seconds))}


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * min(seconds, _LONGEST_WAIT))


_MOST_SHOWN = 2000  # bytes of a dying engine's output


def signal_name(number: int) -> str:
    """The name of a signal: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def engine_death(engine: str, stage: errors.Stage | None, ended: Ended) -> errors.BiopsyError:
    """The error for a process that ended without a result of ``engine``, a spec.

    ``stage`` is the stage that the engine was in; None if it had not got the model yet, and so has not failed on it.
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
