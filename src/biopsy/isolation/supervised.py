"""A task that may be ended by a crash, done in a fork that this process watches: somebody is left to tell of it.

Engines run in the command that the user typed, and a wrong model may end one with a signal. The fork is made before
anything is loaded: it costs a few milliseconds, and is a process like any other, with the same terminal, files and
process group. This one only waits, hands on the signals that it gets, and ends as the fork has ended.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from biopsy import errors
from biopsy.isolation import engine_call
from biopsy.isolation.death import signal_name
from biopsy.isolation.forks import fork
from biopsy.isolation.interrupts import Interrupts
from biopsy.isolation.leaving import leave
from biopsy.isolation.memory import taken_by_family
from biopsy.isolation.watch import LOOK_AT_MEMORY, Cause, Limits

_HANDED_ON = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
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
    page = mmap.mmap(-1, engine_call.SIZE)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # or both would write what is in it
    watched = _HANDED_ON | {signal.SIGCHLD}
    before = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored tells nothing of its children
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child, lifeline = fork()
    except OSError:
        _give_back(mask, before)
        raise
    if child == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _take_interrupts_once()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _do(task, page)
    try:
        ended, received = _watch(child, watched, limits)
    finally:
        os.close(lifeline)
        _give_back(mask - received.signals, before)
    return _end_as(ended, received, page)


def _give_back(mask: set[int | signal.Signals], before: Any) -> None:
    """Handle signals as before: ``mask`` are those that are blocked, ``before`` is the handler of SIGCHLD."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


# In the fork


def _do(task: Callable[[], int], page: mmap.mmap) -> NoReturn:
    """Do the task and end."""
    status = 4
    try:
        engine_call.share(page)
        status = task()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        engine_call.finish(page, status)
    finally:
        leave(status)


def _take_interrupts_once() -> None:
    """Have SIGINT interrupt the task as ever, but not again for what was the same request."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    Interrupts(_ONE_REQUEST).take_over([signal.SIGINT])


# In the process that waits


def _watch(child: int, watched: frozenset[signal.Signals], limits: Limits) -> tuple[int, _Received]:
    """Wait for the end of the fork: its status as the system tells it, and what came here meanwhile."""
    received = _Received()
    until = None if limits.seconds is None else time.monotonic() + limits.seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            received.signals |= {signal.Signals(number) for number in signal.sigpending()} & _HANDED_ON
            return status, received
        arrival = _next_signal(watched, _wait(received, until, limits))
        if arrival is None:
            received.reached = received.reached or _reached(child, until, limits)
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


def _wait(received: _Received, until: float | None, limits: Limits) -> float | None:
    """Seconds until something is due."""
    if received.killed:
        return None
    times = [received.patience(), None if until is None else max(0.0, until - time.monotonic())]
    times.append(None if limits.memory is None else LOOK_AT_MEMORY)
    return min((seconds for seconds in times if seconds is not None), default=None)


def _reached(child: int, until: float | None, limits: Limits) -> Cause | None:
    """The limit that the fork has reached."""
    if until is not None and time.monotonic() >= until:
        return "time"
    if limits.memory is not None and taken_by_family(child) > limits.memory:
        return "memory"
    return None


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
        return None if arrival is None else (signal.Signals(arrival.si_signo), arrival.si_code == _FROM_THE_KERNEL)
    return _next_by_asking(watched, patience)


def _next_by_asking(watched: frozenset[signal.Signals], patience: float | None) -> tuple[signal.Signals, bool] | None:
    """As ``_next_signal``, where the system has no wait with an end: macOS."""
    if patience is not None:
        until = time.monotonic() + patience
        while not signal.sigpending() & watched:
            if time.monotonic() >= until:
                return None
            time.sleep(0.02)
    return signal.Signals(signal.sigwait(watched)), False


def _end_as(ended: int, received: _Received, page: mmap.mmap) -> int:
    """The status of a fork that has ended; raises, or ends this process, where there is none. See ``run``."""
    status = os.waitstatus_to_exitcode(ended)
    if received.reached and engine_call.finished(page) is None and status == -signal.SIGKILL:
        raise LimitReachedError(received.reached)
    if received.killed and engine_call.finished(page) is None and status == -signal.SIGKILL:
        raise errors.Interrupted("interrupted")
    if status < 0 and -status in received.signals:
        _end_alike(-status)
        return 128 - status
    finished = engine_call.finished(page)
    if finished is not None:
        return finished
    raise _death(status, engine_call.last_call(page))


_FROM_SOMEBODY = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)}
"""No engine ends by these of itself: what they end says nothing about the model."""


def _end_alike(number: int) -> None:
    """End this process by the signal that has ended the task, so that whoever waits for it sees just that."""
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # it comes at once, unless this is the first process of a container, which signals spare


def _death(status: int, last: engine_call.LastCall | None) -> errors.BiopsyError:
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
