"""A warm process that makes a fork for each request; ``forks`` is its side.

It pays once for what all requests need. Each fork has the isolation of a process, and is watched as one: a crash, a
hang or a memory bomb ends the fork alone.

Both sides talk over sockets, one JSON object a line: ``{"ready": true, "pid": n}`` on the first one when warm, or an
end of file if the process cannot serve; then on any of them, one request at a time: for an object, which comes with the
descriptor to print into, first ``{"pid": n, "generation": n}``, then ``{"status": n}``, negative for a signal. A fork
ends with its connection, and the server with the last of them.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from biopsy.isolation import cleanup
from biopsy.isolation.forks import CONNECTIONS_VARIABLE, FORK_VARIABLE, MARK, UNMARKED
from biopsy.isolation.output import Pipe
from biopsy.isolation.process import CannotStartError, Process, run_with_own_mark
from biopsy.isolation.watch import Ended, Limits, Stop, attend

_SECONDS_TO_FORK = 120
_SECONDS_TO_END = 5


class ServerGoneError(Exception):
    """The server has ended, cannot serve, or says something that is no answer."""


class ServerProcess(Protocol):
    """What a ``ForkServer`` has of the process that serves."""

    @property
    def pid(self) -> int:
        """Its number, as far as it is known before it is warm."""

    def kill(self) -> object:
        """End it, and wait for that."""

    def wait(self, seconds: float) -> object:
        """Wait until it has ended, at most so long."""

    def close(self) -> None:
        """Free what stands for it here: it has ended, or nobody listens any more."""


class StartsServer(Protocol):
    """Starts the process that serves, by words, environment and descriptors. Raises CannotStartError."""

    def __call__(
        self,
        words: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        environment: Mapping[str, str],
        descriptors: Sequence[int],
    ) -> ServerProcess:
        """The process, which is not waited for."""


class ForkServer:
    """The asking end of a warm process, which is started at once by these words.

    It has as many connections as requests may run at once, and each serves one request at a time. ``patience`` are the
    seconds that it may take to become warm. ``environment`` and ``descriptors`` are handed on to it, and ``stdout`` is
    where it prints, but for its forks. ``start`` starts it, if that is not the process of these words.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        connections: int = 1,
        patience: float = 120,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        stdout: int = subprocess.DEVNULL,
        start: StartsServer = Process,
    ) -> None:
        """Raises ServerGoneError if it cannot be started, or if this platform has no fork."""
        if not hasattr(os, "fork"):
            raise ServerGoneError("this platform has no fork")
        pairs = [socket.socketpair() for _ in range(connections)]
        theirs = [their.fileno() for _, their in pairs]
        try:
            self._process = start(
                words,
                stdout=stdout,
                stderr=stdout,
                environment={
                    **(environment or {}),
                    CONNECTIONS_VARIABLE: json.dumps(theirs),
                    FORK_VARIABLE: UNMARKED,
                },
                descriptors=[*theirs, *descriptors],
            )
        except CannotStartError as error:
            for ours, _ in pairs:
                ours.close()
            raise ServerGoneError(str(error)) from error
        finally:
            for _, their in pairs:
                their.close()
        self.pid = self._process.pid
        self._connections = [_Connection(ours) for ours, _ in pairs]
        self._free: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        for connection in self._connections:
            self._free.put(connection)
        self._warm_by = time.monotonic() + patience
        self._warming = threading.Lock()
        self._warm = False

    def run(
        self,
        request: Mapping[str, Any],
        limits: Callable[[], Limits],
        stop: Stop | None = None,
        *,
        begun: Callable[[int], None] = lambda _: None,
    ) -> Ended:
        """Have a fork do what a request says, and watch it as ``attend`` does. Raises ServerGoneError.

        ``begun`` is told the generation of the fork: those of the same one have found the same loaded.
        """
        self._wait_until_warm()
        connection = self._free.get()

        def run(mark: str) -> Ended:
            with Pipe() as pipe:
                fork = connection.ask({**request, MARK: mark}, pipe.writing)
                pipe.handed_on()
                begun(fork.generation)
                try:
                    return attend(fork, pipe.reading, limits, stop)
                finally:
                    fork.close()

        try:
            return run_with_own_mark(run)
        finally:
            self._free.put(connection)

    def kill(self) -> None:
        """End the server: every connection then ends, and with it the fork that it serves."""
        self._process.kill()

    def close(self) -> None:
        """End the server, at once if it runs nothing; else it sees that nobody listens, and ends what it runs first."""
        is_idle = self._free.qsize() == len(self._connections)
        for connection in self._connections:
            connection.close()
        if not is_idle:
            self._process.wait(_SECONDS_TO_END)
        self._process.kill()
        self._process.close()

    def is_warm(self, within: float) -> bool:
        """Whether it can serve by now, or within some seconds. Raises ServerGoneError if it never will."""
        with self._warming:
            if not self._warm:
                try:
                    answer = self._connections[0].answer(within)
                except TimeoutError:
                    return False
                if answer.get("ready") is not True:
                    raise ServerGoneError
                self.pid = int(answer.get("pid", self.pid))
                self._warm = True
        return True

    def _wait_until_warm(self) -> None:
        if not self.is_warm(max(0.0, self._warm_by - time.monotonic())):
            raise ServerGoneError


class _Connection:
    """One of the sockets to a server."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._read = b""

    def ask(self, request: Mapping[str, Any], output: int) -> _Fork:
        """Have a fork begin that prints into ``output``."""
        try:
            self._socket.settimeout(None)
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._socket, [data], [output])
            self._socket.sendall(data[sent:])
        except OSError as error:
            raise ServerGoneError from error
        answer = self.promised(_SECONDS_TO_FORK)
        given = (answer.get(name) for name in ("pid", "generation"))
        numbers = [number for number in given if isinstance(number, int)]
        if len(numbers) < 2:
            raise ServerGoneError
        return _Fork(*numbers, connection=self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def promised(self, timeout: float) -> dict[str, Any]:
        """The next object, which comes in time unless something is wrong with the server. Raises ServerGoneError."""
        try:
            return self.answer(timeout)
        except TimeoutError as error:
            raise ServerGoneError from error

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next object. Raises TimeoutError if it does not come in time, ServerGoneError if none will."""
        while b"\n" not in self._read:
            self._socket.settimeout(timeout)
            try:
                data = self._socket.recv(4096)
            except (BlockingIOError, TimeoutError) as error:
                raise TimeoutError from error
            except OSError as error:
                raise ServerGoneError from error
            if not data:
                raise ServerGoneError
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ServerGoneError from error
        if not isinstance(answer, dict):
            raise ServerGoneError
        return answer


class _Fork:
    """A child of the server. It has nothing to clean up, so it is never asked politely to end."""

    patient = False

    def __init__(self, pid: int, generation: int, *, connection: _Connection) -> None:
        self.pid = pid
        self.generation = generation
        self._connection = connection
        self._entry = cleanup.group(pid)
        cleanup.register(*self._entry)

    def fileno(self) -> int | None:
        return self._connection.fileno()

    def status(self) -> int | None:
        try:
            status = self._connection.answer(0).get("status")
        except TimeoutError:
            return None
        if not isinstance(status, int):
            raise ServerGoneError
        return status

    def close(self) -> None:
        """It has ended: its number may be that of somebody else soon."""
        cleanup.strike(*self._entry)
