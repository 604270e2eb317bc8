"""Checks that are our own ``run``, made in children forked from one warm process.

A cold process pays for its imports and for reading inputs and golden values again in every check. Here one process,
the zygote, pays once; each check is a fork of it, with the isolation of a process: a crash, a hang or a memory bomb
ends the child alone. What the check prints and how it ends are the same either way.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from biopsy.checks import process
from biopsy.checks.command import CommandCheck, verdict_of
from biopsy.checks.command_line import CommandLine, OwnRun, parse
from biopsy.checks.process import Ended, Limits, Pipe, Stop
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.interpreter import own_python

_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""

_SECONDS_TO_WARM_UP = 120


class WarmCheck(CommandCheck):
    """A command that is our own ``run``; falls back to cold processes where there is no fork or no zygote.

    ``jobs`` is how many of them may run at once.
    """

    def __init__(
        self,
        words: Sequence[str],
        default_name: str,
        timeout: float | None = None,
        memory: int | None = None,
        jobs: int = 1,
    ) -> None:
        super().__init__(words, default_name, timeout, memory)
        self._jobs = jobs
        self._zygote: Zygote | None = None
        self._lost: list[Zygote] = []
        self._given_up = not hasattr(os, "fork")
        self._starting = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, the check is a cold one: the zygote is here."""
        return CommandCheck, (self.words, self.default_name, self.timeout, self.memory)

    def start(self) -> None:
        """Begin to warm up, and do not wait for it."""
        with self._starting:
            if self._zygote is None and not self._given_up:
                self._zygote = Zygote(self.words, self._jobs)

    def _with(self, command: CommandLine) -> CommandCheck:
        """A check of other words that is served by the same zygote."""
        found = WarmCheck(command.words, self.default_name, self.timeout, self.memory, self._jobs)
        found._zygote, found._given_up, found._starting = self._zygote, self._given_up, self._starting
        return found

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return CommandCheck(self.words, self.default_name, self.timeout, self.memory)

    def close(self) -> None:
        """End the zygote."""
        with self._starting:
            for zygote in (*self._lost, *([] if self._zygote is None else [self._zygote])):
                zygote.close()
            self._lost, self._zygote = [], None

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        self.start()
        zygote = self._zygote
        if zygote is not None:
            try:
                ended = zygote.check(words, told, lambda: self._limits, stop)
                if ended.cause != "itself" or verdict_of(told, ended).has_looked:
                    return ended
            except ZygoteGoneError:
                self._lose(zygote)
            # A fork that died before it looked at the model says nothing of that: a process of its own is asked.
            told.unlink(missing_ok=True)  # what the fork may have said of itself is not what this run will say
        return super()._run(words, told, stop)

    def _lose(self, zygote: Zygote) -> None:
        """Go on without it. Other threads may still listen to it: what they listen to stays open until the end."""
        with self._starting:
            self._given_up = True
            zygote.kill()
            if self._zygote is zygote:
                self._zygote = None
                self._lost.append(zygote)


def command_check(
    words: Sequence[str],
    default_name: str,
    timeout: float | None = None,
    memory: int | None = None,
    jobs: int = 1,
) -> CommandCheck:
    """The check that a command makes: warm if it is our own ``run``."""
    command = parse(words)
    if isinstance(command, OwnRun) and command.is_this_installation:
        return WarmCheck(words, default_name, timeout, memory, jobs)
    return CommandCheck(words, default_name, timeout, memory)


class ZygoteGoneError(Exception):
    """The zygote has ended, cannot serve these words, or says something that is no answer."""


class Zygote:
    """The client's end of a warm process, started at once; see ``biopsy.cli.zygote`` for the other.

    It has as many connections as checks may run at once, and each serves one check at a time.
    """

    def __init__(self, words: Sequence[str], connections: int = 1) -> None:
        pairs = [socket.socketpair() for _ in range(connections)]
        theirs = [their.fileno() for _, their in pairs]
        self._process = subprocess.Popen(
            [*own_python(_ZYGOTE), json.dumps(theirs), json.dumps(list(words))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=theirs,
            start_new_session=True,
        )
        for _, their in pairs:
            their.close()
        self._connections = [_Connection(ours) for ours, _ in pairs]
        self._free: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        for connection in self._connections:
            self._free.put(connection)
        self._warming = threading.Lock()
        self._warm = False

    def check(self, words: Sequence[str], told: Path, limits: Callable[[], Limits], stop: Stop | None) -> Ended:
        """Run one check in a fork. Raises ZygoteGoneError."""
        self._wait_until_warm()
        connection = self._free.get()
        try:
            with Pipe() as pipe:
                fork = connection.ask({"words": list(words), VERDICT_VARIABLE: str(told)}, pipe.writing)
                pipe.handed_on()
                return process.attend(fork, pipe.reading, limits, stop)
        finally:
            self._free.put(connection)

    def kill(self) -> None:
        """End the zygote: every connection then ends, and with it the check that it serves."""
        self._process.kill()

    def close(self) -> None:
        """End the zygote and whatever it still runs: it sees that nobody listens any more."""
        for connection in self._connections:
            connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()

    def _wait_until_warm(self) -> None:
        with self._warming:
            if not self._warm:
                if self._connections[0].promised() != {"ready": True}:
                    raise ZygoteGoneError
                self._warm = True


class _Connection:
    """One of the sockets to a zygote: a JSON object a line in both directions."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._read = b""

    def ask(self, request: dict[str, object], output: int) -> _Fork:
        """Have a check begin that prints into ``output``."""
        try:
            self._socket.settimeout(None)
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._socket, [data], [output])
            self._socket.sendall(data[sent:])
        except OSError as error:
            raise ZygoteGoneError from error
        child = self.promised().get("pid")
        if not isinstance(child, int):
            raise ZygoteGoneError
        return _Fork(child, self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def promised(self) -> dict[str, Any]:
        """The next object, which comes soon unless something is wrong with the zygote. Raises ZygoteGoneError."""
        try:
            return self.answer(_SECONDS_TO_WARM_UP)
        except TimeoutError as error:
            raise ZygoteGoneError from error

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next object. Raises TimeoutError if it does not come in time, ZygoteGoneError if none will."""
        while b"\n" not in self._read:
            self._socket.settimeout(timeout)
            try:
                data = self._socket.recv(4096)
            except (BlockingIOError, TimeoutError) as error:
                raise TimeoutError from error
            except OSError as error:
                raise ZygoteGoneError from error
            if not data:
                raise ZygoteGoneError
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ZygoteGoneError from error
        if not isinstance(found, dict):
            raise ZygoteGoneError
        return found


class _Fork:
    """A child of the zygote. It has nothing to clean up, so it is never asked politely to end."""

    patient = False

    def __init__(self, pid: int, connection: _Connection) -> None:
        self.pid = pid
        self._connection = connection

    def fileno(self) -> int | None:
        return self._connection.fileno()

    def status(self) -> int | None:
        try:
            status = self._connection.answer(0).get("status")
        except TimeoutError:
            return None
        if not isinstance(status, int):
            raise ZygoteGoneError
        return status
