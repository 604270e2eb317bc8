"""One call of native code in a fork: what crashes there, hangs or fills the memory costs this process nothing.

The fork is made from whatever has been loaded, within milliseconds, and does nothing but this call. It may be made
while other threads run: it never comes back to Python code of theirs, and the native code that it calls must take no
lock that another thread may hold. Code that keeps Python's own lock while it works, as onnx does, is of that kind.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn

from biopsy.isolation.forks import fork, sacrifice
from biopsy.isolation.memory import taken_by
from biopsy.isolation.watch import Cause, Limits

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


def is_possible() -> bool:
    """Whether a call can be made apart here. Only Linux lets a fork of a process with several threads do much."""
    return hasattr(os, "fork") and sys.platform.startswith("linux")


def call_apart(work: Callable[[], Iterable[bytes]], limits: Limits) -> list[bytes]:
    """Do ``work`` in a fork; returns its answers, in their order.

    ``limits.memory`` bounds what the fork allocates besides what this process has; files that are mapped do not count.
    Raises EndedApartError if it dies, raises or reaches a limit, and OSError if there can be no fork.
    """
    with _forking:  # or the fork of another thread would hold our end of the pipe open
        reading, writing = os.pipe()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of other threads; see above
                child, lifeline = fork()
            if child == 0:
                _work(work, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
    status = None
    try:
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
    answers = _parts(data)
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
    until = None if limits.seconds is None else time.monotonic() + limits.seconds
    before = taken_by(child)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    data = bytearray()
    while True:
        if poll.poll(_LOOK_AT_MEMORY):
            more = os.read(reading, _AT_ONCE)
            if not more:
                return "itself", bytes(data)
            data += more
        if until is not None and time.monotonic() >= until:
            return "time", bytes(data)
        if limits.memory is not None and taken_by(child) - before + len(data) > limits.memory:
            return "memory", bytes(data)


def _parts(data: bytes) -> list[bytes]:
    """The answers that came whole."""
    found, at = [], 0
    while at + _HEAD <= len(data):
        end = at + _HEAD + int.from_bytes(data[at : at + _HEAD], "little")
        if end > len(data):
            break
        found.append(data[at + _HEAD : end])
        at = end
    return found
