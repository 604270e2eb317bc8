"""Work that is done in a fork, which this process watches, so that a crash, a hang or full memory there costs
nothing: a whole task, or one call of native code.
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
from biopsy.processes import own_process
from biopsy.processes.forks import fork, sacrifice
from biopsy.processes.own_process import HeldSignals, Interrupts, flush, leave, signals, taken_by, taken_by_family
from biopsy.processes.watch import Cause, Limits, signal_name

_HANDED_ON = signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that are meant for the task, whichever of the two processes they are sent to."""

_FROM_THE_KERNEL = 0x80
"""``si_code`` of a signal that the kernel sends by itself: Ctrl-C reaches every process of the terminal's group."""

NO_LIMITS = Limits()

_ONE_REQUEST = 0.5  # seconds in which several SIGINT are one: sent to the group, they come to the fork twice

_GRACE = 3.0
"""Seconds that the task has to end in when it is interrupted; it may be in native code, which hears of nothing."""


def is_possible() -> bool:
    """Whether a fork can be made here: on this platform, and while there is only one thread."""
    threading = sys.modules.get("threading")
    alone = threading is None or (
        threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    )
    return hasattr(os, "fork") and hasattr(signal, "pthread_sigmask") and alone


class LimitReachedError(errors.BiopsyError):
    """A task was ended since it had taken more time, or more memory, than it may: ``cause`` says which."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"the command was ended at its limit of {cause}")
        self.cause = cause


def run(task: Callable[[], int], limits: Limits = NO_LIMITS) -> int:
    """Do a task in a fork; returns the status that it returns.

    It is killed when it reaches a limit, and LimitReachedError is raised. ``limits.memory`` is for all its processes;
    files that they map do not count.

    If it does not end within three seconds of an interrupt, or is interrupted again, it is killed, and Interrupted is
    raised: an engine may be in native code for ever, where Python hears of nothing.

    If the fork is ended by a signal that was not sent to this process, or ends without coming to the end of its task,
    raises EngineCrash if an engine was being asked, else BiopsyError. If it is ended by a signal that was sent to
    this process too, this process ends by it.
    """
    page = mmap.mmap(-1, own_process.SIZE)
    flush()  # or both would write what is in it
    watched = _HANDED_ON | {signal.SIGCHLD}
    before = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored tells nothing of its children
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
    status, finished = os.waitstatus_to_exitcode(ended), own_process.finished(page)
    if finished is None and status == -signal.SIGKILL:
        if received.reached:
            raise LimitReachedError(received.reached)
        if received.killed:
            raise errors.Interrupted("interrupted")
    if status < 0 and -status in received.signals:
        # End by the signal that has ended the task, so that whoever waits for this process sees just that.
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
            time.sleep(0.1)  # it comes at once, unless this is the first process of a container, which signals spare
        return 128 - status
    if finished is not None:
        return finished
    raise _death(status, own_process.last_call(page))


def _give_back(mask: set[int | signal.Signals], before: Any) -> None:
    """Handle signals as before: ``mask`` are those that are blocked, ``before`` is the handler of SIGCHLD."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def _do(task: Callable[[], int], page: mmap.mmap, mask: set[int | signal.Signals]) -> NoReturn:
    """In the fork: do the task and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        Interrupts(_ONE_REQUEST).take_over([signal.SIGINT])  # but not again for what was the same request
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = 4
    try:
        own_process.share(page)
        status = task()
        flush()
        own_process.finish(page, status)
    finally:
        leave(status)


def _watch(child: int, watched: frozenset[signal.Signals], limits: Limits) -> tuple[int, _Received]:
    """Wait for the end of the fork: its status as the system tells it, and what came here meanwhile."""
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
    """The signals that came to this process; whether the fork had to be killed, since it heeds none or for a limit."""

    def __init__(self) -> None:
        self.signals: set[signal.Signals] = set()
        self.reached: Cause | None = None
        self.interrupted_at: float | None = None
        self.killed = False
        self._patience = _GRACE
        self._heeds_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def add(self, number: signal.Signals) -> None:
        """Take note of a signal. An interrupt that comes again, and is no echo of the first, ends all patience."""
        self.signals.add(number)
        if number != signal.SIGINT or not self._heeds_interrupts or self.killed:
            return
        if self.interrupted_at is None:
            self.interrupted_at = time.monotonic()
        elif time.monotonic() - self.interrupted_at > _ONE_REQUEST:
            self._patience = 0.0

    def patience(self) -> float | None:
        """Seconds until the fork is to be killed; None if it was not interrupted."""
        if self.interrupted_at is None:
            return None
        return max(0.0, self.interrupted_at + self._patience - time.monotonic())


def _next_signal(watched: frozenset[signal.Signals], patience: float | None) -> tuple[signal.Signals, bool] | None:
    """The next signal that comes, and whether it surely came to the fork as well; None if none comes in time."""
    if hasattr(signal, "sigtimedwait"):
        arrival = signal.sigwaitinfo(watched) if patience is None else signal.sigtimedwait(watched, patience)
        # Stopped by Ctrl-Z past the end of its patience, Python returns memory that nobody wrote to.
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


_FROM_SOMEBODY = signals("SIGTERM", "SIGHUP", "SIGINT")
"""No engine ends by these of itself: what they end says nothing about the model."""


def _death(status: int, last: own_process.LastCall | None) -> errors.BiopsyError:
    """What is to be told of a task that did not come to its end."""
    kind = signal_name(-status) if status < 0 else f"exit status {status}"
    memory = ": the system may have run out of memory" if kind == "SIGKILL" else ""
    if last is not None and last.is_open and -status not in _FROM_SOMEBODY:
        stage: errors.Stage = "build" if last.stage == "build" else "run" if last.stage == "run" else "load"
        how = f"ended with {kind}" if status < 0 else f"ended the process with {kind}"
        return errors.EngineCrash(
            f"{last.engine} {how} while {last.description}{memory}", label=last.engine, stage=stage, kind=kind
        )
    asked = f"; the engine that was asked last is {last.engine}" if last is not None else ""
    return errors.BiopsyError(f"biopsy ended with {kind} before its work was done{memory}{asked}")


# One call of native code in a fork: what crashes there, hangs or fills the memory costs this process nothing.
#
# The fork is made from whatever has been loaded, within milliseconds, and does nothing but this call. It may be made
# while other threads run: it never comes back to Python code of theirs, and the native code that it calls must take
# no lock that another thread may hold. Code that keeps Python's own lock while it works, as onnx does, is of that
# kind.

_LOOK_AT_MEMORY = 10  # milliseconds: at a gigabyte a second, a limit is passed by 10 MB
_HEAD = 8  # bytes that tell the length of an answer
_AT_ONCE = 1 << 20

_forking = threading.Lock()


class EndedApartError(Exception):
    """The fork has ended, or was ended, before it had answered. ``answers`` are those that came before."""

    def __init__(self, cause: Cause, status: int, answers: list[bytes]) -> None:
        super().__init__(f"{cause}, status {status}")
        self.cause = cause
        self.status = status
        self.answers = answers


def is_apart_possible() -> bool:
    """Whether a call can be made apart here. Only Linux lets a fork of a process with several threads do much."""
    return hasattr(os, "fork") and sys.platform.startswith("linux")


def call_apart(work: Callable[[], Iterable[bytes]], limits: Limits) -> list[bytes]:
    """Do ``work`` in a fork; returns its answers, in their order.

    ``limits.memory`` bounds what the fork allocates besides what this process has; files that are mapped do not count.
    Raises EndedApartError if it dies, raises or reaches a limit, and OSError if there can be no fork.
    """
    child, lifeline, status = 0, -1, None
    held = HeldSignals()
    try:
        with _forking:  # or the fork of another thread would hold our end of the pipe open
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
        raise EndedApartError(cause, status, answers)
    return answers


def _work(work: Callable[[], Iterable[bytes]], writing: int) -> NoReturn:
    """In the fork: answer, and end without anything that this process had registered for its end."""
    status = 4
    try:
        _forking.release()  # it was taken for this fork, which may make calls of its own
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # who waits for it ends it
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        if "faulthandler" in sys.modules:
            sys.modules["faulthandler"].disable()  # a crash is told by who waits for it
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
    """What the fork says until it ends or reaches a limit."""
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
