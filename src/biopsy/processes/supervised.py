"""Runs a task, or one call of native code, in a fork that this process watches, so that a crash, a hang or full memory
there does no harm here.
"""

from __future__ import annotations

import io
import mmap
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from biopsy import errors
from biopsy.processes import engine_calls, own_process
from biopsy.processes.forks import fork, sacrifice
from biopsy.processes.own_process import (
    FROM_SOMEBODY,
    HeldSignals,
    Interrupts,
    flush,
    leave,
    signals,
    taken_by,
    taken_by_family,
)
from biopsy.processes.watch import Cause, Limits, signal_name

_HANDED_ON = signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that are meant for the task, whichever of the two processes gets them."""

_FROM_THE_KERNEL = 0x80
"""``si_code`` of a signal from the kernel: Ctrl-C reaches every process of the terminal's group."""

NO_LIMITS = Limits()

_ONE_REQUEST = 0.5  # seconds in which several SIGINT are one: sent to the group, the fork gets it twice

_GRACE = 3.0
"""Seconds until an interrupted task is killed: native code does not react to an interrupt."""


def is_possible() -> bool:
    """Whether this platform can fork and this process has only one thread."""
    threading = sys.modules.get("threading")
    has_one_thread = threading is None or (
        threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    )
    return hasattr(os, "fork") and hasattr(signal, "pthread_sigmask") and has_one_thread


class LimitReachedError(errors.BiopsyError):
    """A task was ended at its limit; ``cause`` is "time" or "memory"."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"the command was ended at its limit of {cause}")
        self.cause = cause


def run(task: Callable[[], int], limits: Limits = NO_LIMITS) -> int:
    """Run a task in a fork; returns the status that the task returns.

    The fork is killed at a limit, and LimitReachedError is raised. ``limits.memory`` is for all its processes, without
    mapped files.

    If it does not end within three seconds of an interrupt, or is interrupted again, it is killed and Interrupted is
    raised, since an engine may be in native code for ever.

    If the fork dies by a signal that was not sent to this process, or ends before its task is done, raises EngineCrash
    if an engine was running, else BiopsyError. If it dies by a signal that was also sent to this process, this process
    dies by it, too.
    """
    page = mmap.mmap(-1, engine_calls.SIZE)
    flush()  # else both processes would write the buffered output
    watched = _HANDED_ON | {signal.SIGCHLD}
    before = signal.signal(signal.SIGCHLD, lambda *_: None)  # if it is ignored, it does not arrive
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child, lifeline = fork()
    except OSError:
        _give_back(mask, before)
        raise
    if child == 0:
        _do(task, page, mask)
    try:
        ended, received = _watch(child, watched, limits)
    finally:
        os.close(lifeline)
        _give_back(mask - received.signals, before)
    status, finished = os.waitstatus_to_exitcode(ended), engine_calls.finished(page)
    if finished is None and status == -signal.SIGKILL:
        if received.reached:
            raise LimitReachedError(received.reached)
        if received.killed:
            raise errors.Interrupted("interrupted")
    if status < 0 and -status in received.signals:
        own_process.end_by_signal(-status)  # the parent of this process then sees how the task has ended
        return 128 - status
    if finished is not None:
        return finished
    raise _death(status, engine_calls.last_call(page))


def _give_back(mask: set[int | signal.Signals], before: Any) -> None:
    """Restore the blocked signals, ``mask``, and the handler of SIGCHLD, ``before``."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def _do(task: Callable[[], int], page: mmap.mmap, mask: set[int | signal.Signals]) -> NoReturn:
    """In the fork: run the task and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        Interrupts(_ONE_REQUEST).take_over([signal.SIGINT])  # raises only once for the same request
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = 4
    try:
        engine_calls.share(page)
        status = task()
        flush()
        engine_calls.finish(page, status)
    finally:
        leave(status)


def _watch(child: int, watched: frozenset[signal.Signals], limits: Limits) -> tuple[int, _Received]:
    """Wait for the end of the fork; returns its wait status, and the signals that arrived here meanwhile."""
    received = _Received()
    started = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            received.signals |= {signal.Signals(number) for number in signal.sigpending()} & _HANDED_ON
            return status, received
        waits = () if received.killed else (received.patience(), limits.until_due(started))
        arrival = _next_signal(watched, min((each for each in waits if each is not None), default=None))
        if arrival is None:
            received.reached = received.reached or limits.reached(started, partial(taken_by_family, child))
            if received.patience() == 0 or (received.reached and not received.killed):
                received.killed = True
                received.interrupted_at = None
                os.kill(child, signal.SIGKILL)
            continue
        number, meant_for_all = arrival
        if number != signal.SIGCHLD:
            received.add(number)
            if not meant_for_all:
                with suppress(ProcessLookupError):
                    os.kill(child, number)


class _Received:
    """The signals that arrived at this process; and whether and why the fork was killed."""

    def __init__(self) -> None:
        self.signals: set[signal.Signals] = set()
        self.reached: Cause | None = None
        self.interrupted_at: float | None = None
        self.killed = False
        self._patience = _GRACE
        self._heeds_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def add(self, number: signal.Signals) -> None:
        """Record a signal. A second interrupt, which is not an echo of the first, means to kill the fork now."""
        self.signals.add(number)
        if number != signal.SIGINT or not self._heeds_interrupts or self.killed:
            return
        if self.interrupted_at is None:
            self.interrupted_at = time.monotonic()
        elif time.monotonic() - self.interrupted_at > _ONE_REQUEST:
            self._patience = 0.0

    def patience(self) -> float | None:
        """Seconds until the fork must be killed; None if it was not interrupted."""
        if self.interrupted_at is None:
            return None
        return max(0.0, self.interrupted_at + self._patience - time.monotonic())


def _next_signal(watched: frozenset[signal.Signals], patience: float | None) -> tuple[signal.Signals, bool] | None:
    """The next signal, and whether the fork has surely got it, too; None if none arrives in time."""
    if hasattr(signal, "sigtimedwait"):
        arrival = signal.sigwaitinfo(watched) if patience is None else signal.sigtimedwait(watched, patience)
        # If Ctrl-Z stops this process until the time is over, Python returns uninitialized memory.
        if arrival is None or arrival.si_signo not in watched:
            return None
        return signal.Signals(arrival.si_signo), arrival.si_code == _FROM_THE_KERNEL
    if patience is not None:
        until = time.monotonic() + patience
        while not signal.sigpending() & watched:
            if time.monotonic() >= until:
                return None
            time.sleep(0.02)
    return signal.Signals(signal.sigwait(watched)), False


def _death(status: int, last: engine_calls.LastCall | None) -> errors.BiopsyError:
    """The error for a task that ended before it was done."""
    kind = signal_name(-status) if status < 0 else f"exit status {status}"
    memory = ": the system may have run out of memory" if kind == "SIGKILL" else ""
    if last is not None and last.is_open and -status not in FROM_SOMEBODY:
        stage: errors.Stage = "build" if last.stage == "build" else "run" if last.stage == "run" else "load"
        how = f"ended with {kind}" if status < 0 else f"ended the process with {kind}"
        return errors.EngineCrash(
            f"{last.engine} {how} while {last.description}{memory}", label=last.engine, stage=stage, kind=kind
        )
    asked = f"; the engine that was asked last is {last.engine}" if last is not None else ""
    return errors.BiopsyError(f"biopsy ended with {kind} before its work was done{memory}{asked}")


_LOOK_AT_MEMORY = 10  # milliseconds: at a gigabyte a second, a limit is exceeded by 10 MB
_HEAD = 8  # bytes of the length of an answer
_AT_ONCE = 1 << 20

_forking = threading.Lock()


class ForkEndedError(Exception):
    """The fork has ended, or was ended, before it was done. ``answers`` are those that it gave before."""

    def __init__(self, cause: Cause, status: int, answers: list[bytes]) -> None:
        super().__init__(f"{cause}, status {status}")
        self.cause = cause
        self.status = status
        self.answers = answers


def can_call_in_fork() -> bool:
    """Whether ``call_in_fork`` works here: on Linux, where a fork of a process with several threads can do much."""
    return hasattr(os, "fork") and sys.platform.startswith("linux")


def call_in_fork(work: Callable[[], Iterable[bytes]], limits: Limits) -> list[bytes]:
    """Do ``work``, one call of native code, in a fork; returns its answers, in their order.

    The fork takes milliseconds, and does nothing but this call. Other threads may be running, since it never returns to
    their Python code, but the native code must take no lock that another thread may hold. Code that keeps Python's own
    lock while it works, as onnx does, fulfils that.

    ``limits.memory`` is for the memory that the fork allocates in addition, without mapped files. Raises
    ForkEndedError if it dies, raises or reaches a limit, and OSError if it cannot be made.
    """
    child, lifeline, status = 0, -1, None
    held = HeldSignals()
    try:
        with _forking:  # else the fork of another thread would keep our end of the pipe open
            reading, writing = os.pipe()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # of other threads; see above
                    child, lifeline = fork()
                if child == 0:
                    _work(work, writing)
            except OSError:
                os.close(reading)
                raise
            finally:
                os.close(writing)
    except BaseException:
        held.release()
        raise
    try:
        held.release()
        cause, data = _read(reading, child, limits)
        if cause != "itself":
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        if status is None:  # this process was interrupted
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(reading)
        os.close(lifeline)
    stream, answers = io.BytesIO(data), []
    while len(head := stream.read(_HEAD)) == _HEAD:
        length = int.from_bytes(head, "little")
        if len(answer := stream.read(length)) == length:
            answers.append(answer)
    if status != 0:
        raise ForkEndedError(cause, status, answers)
    return answers


def _work(work: Callable[[], Iterable[bytes]], writing: int) -> NoReturn:
    """In the fork: answer, and end without the functions that the parent registered with atexit."""
    status = 4
    try:
        _forking.release()  # the parent took it for this fork, which may make calls of its own
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the waiting parent ends it
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        if "faulthandler" in sys.modules:
            sys.modules["faulthandler"].disable()  # the waiting parent reports a crash
        sacrifice(os.getpid())
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        with os.fdopen(os.dup(writing), "wb") as answers:
            for answer in work():
                answers.write(len(answer).to_bytes(_HEAD, "little") + answer)
                answers.flush()
        status = 0
    finally:
        os._exit(status)


def _read(reading: int, child: int, limits: Limits) -> tuple[Cause, bytes]:
    """What the fork writes until it ends or reaches a limit, and which of these it is."""
    started, before = time.monotonic(), taken_by(child)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    data = bytearray()
    while True:
        if poll.poll(_LOOK_AT_MEMORY):
            more = os.read(reading, _AT_ONCE)
            if not more:
                return "itself", bytes(data)
            data.extend(more)
        cause = limits.reached(started, lambda: taken_by(child) - before + len(data))
        if cause is not None:
            return cause, bytes(data)
