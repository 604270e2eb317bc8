"""Work that may be ended by a crash, done in a fork that this process watches, so that somebody is left to tell of it.

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
from typing import NoReturn

from biopsy import errors
from biopsy.isolation import engine_call
from biopsy.isolation.death import signal_name

_HANDED_ON = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that are meant for the work, whichever of the two processes they are sent to."""

_FROM_THE_KERNEL = 0x80
"""``si_code`` of a signal that the kernel sends by itself: Ctrl-C reaches every process of the terminal's group."""

_ONE_REQUEST = 0.5  # seconds in which several SIGINT are one: sent to the group, they come to the fork twice


def is_possible() -> bool:
    """Whether a fork can be made here: on this platform, and while there is only one thread."""
    threading = sys.modules.get("threading")
    alone = threading is None or (
        threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    )
    return hasattr(os, "fork") and hasattr(signal, "pthread_sigmask") and alone


def run(work: Callable[[], int]) -> int:
    """Do the work in a fork; returns the status that it returns.

    If the fork is ended by a signal that was not sent to this process, or ends without coming to the end of its work,
    raises EngineFailure if an engine was being asked, else BiopsyError. If it is ended by a signal that was sent to
    this process too, this process ends by it.
    """
    page = mmap.mmap(-1, engine_call.SIZE)
    alive, kept_open = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # or both would write what is in it
    watched = _HANDED_ON | {signal.SIGCHLD}
    before = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored tells nothing of its children
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(kept_open)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(alive, parent)
        _take_interrupts_once()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _do(work, page)
    os.close(alive)
    try:
        ended, received = _watch(child, watched)
    finally:
        os.close(kept_open)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask - received)
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)
    return _told(ended, received, page)


# In the fork


def _do(work: Callable[[], int], page: mmap.mmap) -> NoReturn:
    """Do the work and end. What is loaded is not taken apart: nobody needs that, and engines have crashed in it."""
    status = 4
    try:
        engine_call.share(page)
        status = work()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        engine_call.finish(page, status)
        import atexit

        atexit._run_exitfuncs()
    finally:
        os._exit(status)


def _end_with(alive: int, parent: int) -> None:
    """Have this process killed when the other is gone, and with it the other end of the pipe.

    Only where the system can send a signal of our choice for that: Linux.
    """
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        with suppress(OSError):
            fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:
        os._exit(4)


def _take_interrupts_once() -> None:
    """Have SIGINT interrupt the work as ever, but not again for what was the same request."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    asked: list[float] = []

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        if not asked or time.monotonic() - asked[-1] > _ONE_REQUEST:
            asked.append(time.monotonic())
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


# In the process that waits


def _watch(child: int, watched: frozenset[signal.Signals]) -> tuple[int, set[signal.Signals]]:
    """Wait for the end of the fork: its status as the system tells it, and the signals that came here meanwhile."""
    received: set[signal.Signals] = set()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            received |= {signal.Signals(number) for number in signal.sigpending()} & _HANDED_ON
            return status, received
        number, meant_for_all = _next_signal(watched)
        if number != signal.SIGCHLD:
            received.add(number)
            if not meant_for_all:
                with suppress(ProcessLookupError):
                    os.kill(child, number)


def _next_signal(watched: frozenset[signal.Signals]) -> tuple[signal.Signals, bool]:
    """The next signal that comes, and whether it surely came to the fork as well."""
    if hasattr(signal, "sigwaitinfo"):
        found = signal.sigwaitinfo(watched)
        return signal.Signals(found.si_signo), found.si_code == _FROM_THE_KERNEL
    return signal.Signals(signal.sigwait(watched)), False


def _told(ended: int, received: set[signal.Signals], page: mmap.mmap) -> int:
    status = os.waitstatus_to_exitcode(ended)
    if status < 0 and -status in received:
        _end_alike(-status)
        return 128 - status
    finished = engine_call.finished(page)
    if finished is not None:
        return finished
    raise _death(status, engine_call.last_call(page))


def _end_alike(number: int) -> None:
    """End this process by the signal that has ended the work, so that whoever waits for it sees just that."""
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # it comes at once, unless this is the first process of a container, which signals spare


def _death(status: int, last: engine_call.LastCall | None) -> errors.BiopsyError:
    """What is to be told of work that did not come to its end."""
    kind = signal_name(-status) if status < 0 else f"exit status {status}"
    memory = ": the system may have run out of memory" if kind == "SIGKILL" else ""
    if last is not None and last.is_open:
        stage: errors.Stage = "build" if last.stage == "build" else "run" if last.stage == "run" else "load"
        name = last.engine.partition(":")[0]
        how = f"ended with {kind}" if status < 0 else f"ended the process with {kind}"
        return errors.EngineFailure(
            f"{last.engine} {how} while {last.doing}{memory}", engine=name, stage=stage, kind=kind
        )
    asked = f"; the engine that was asked last is {last.engine}" if last is not None else ""
    return errors.BiopsyError(f"biopsy ended with {kind} before its work was done{memory}{asked}")
