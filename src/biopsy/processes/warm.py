"""Processes that are started before they are needed: one that forks for each request, also for a user's script, and
one that waits for its request.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy.processes import cleanup
from biopsy.processes.forks import CONNECTIONS_VARIABLE, FORK_VARIABLE, MARK, STATE_VARIABLE, UNMARKED, end_group
from biopsy.processes.own_process import own_python
from biopsy.processes.process import CannotStartError, PrintingProcess, Process, run_with_own_mark
from biopsy.processes.watch import Ended, Limits, Pipe, Stop, attend, readable

_SECONDS_TO_FORK = 120
_SECONDS_TO_END = 5


class ServerGoneError(Exception):
    """The server has ended, cannot serve, or has sent an invalid answer."""


class ForkServer:
    """The asking end of a warm process, which is started at once with these words.

    It has as many connections as requests may run at the same time. ``patience`` are the seconds that it may take to
    become warm. It inherits ``environment`` and ``descriptors``, and prints to ``stdout``, but its forks do not.
    ``start`` starts the process, if it is not a plain ``Process``.
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
        start: Callable[..., Process | ForkOfWaiting] = Process,
    ) -> None:
        """Raises ServerGoneError if it cannot be started."""
        pairs = [socket.socketpair() for _ in range(connections)]
        server_descriptors = [server_end.fileno() for _, server_end in pairs]
        try:
            self._process = start(
                words,
                stdout=stdout,
                stderr=stdout,
                environment={
                    **(environment or {}),
                    CONNECTIONS_VARIABLE: json.dumps(server_descriptors),
                    FORK_VARIABLE: UNMARKED,
                },
                descriptors=[*server_descriptors, *descriptors],
            )
        except CannotStartError as error:
            for own_end, _ in pairs:
                own_end.close()
            raise ServerGoneError(str(error)) from error
        finally:
            for _, server_end in pairs:
                server_end.close()
        self.pid = self._process.pid
        self._connections = [Connection(own_end) for own_end, _ in pairs]
        self._free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
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
        """Serve a request in a fork, and watch it as ``attend``. Raises ServerGoneError.

        ``begun`` is called with the generation of the fork: forks of one generation have the same modules loaded.
        """
        if not self.is_warm(max(0.0, self._warm_by - time.monotonic())):
            raise ServerGoneError
        connection = self._free.get()

        def run(mark: str) -> Ended:
            with Pipe() as pipe:
                pid, generation = connection.ask({**request, MARK: mark}, pipe.writing)
                fork = Fork(pid, connection)
                pipe.close_writing()
                begun(generation)
                try:
                    ended = attend(fork, pipe.reading, limits, stop)
                finally:
                    fork.close()
                if fork.is_lost:
                    raise ServerGoneError
                return ended

        try:
            return run_with_own_mark(run)
        finally:
            self._free.put(connection)

    def begin(self, request: Mapping[str, Any], *descriptors: int) -> Fork | None:
        """Serve a request in a fork that the caller watches; None if too many are running. Raises ServerGoneError."""
        try:
            connection = self._free.get_nowait()
        except queue.Empty:
            return None
        return Fork(connection.ask(request, *descriptors)[0], connection, self._free.put)

    def kill(self) -> None:
        """Kill the server, which closes every connection and thereby ends its fork."""
        self._process.kill()

    def close(self) -> None:
        """End the server, at once if it is idle; else it first ends its forks, whose connections are closed."""
        is_idle = self._free.qsize() == len(self._connections)
        for connection in self._connections:
            connection.close()
        if not is_idle:
            self._process.wait(_SECONDS_TO_END)
        self._process.kill()
        self._process.close()

    def is_warm(self, within: float) -> bool:
        """Whether it can serve, now or within some seconds. Raises ServerGoneError if it never will."""
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


class Connection:
    """The asking end of a socket to a process that forks for each request and reports the start and end of the fork."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""

    def ask(self, request: Mapping[str, Any], *descriptors: int) -> tuple[int, int]:
        """Start a fork, which prints into the first of the descriptors; returns its number and its generation.

        Raises ServerGoneError.
        """
        try:
            self._socket.settimeout(None)
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._socket, [data], list(descriptors))
            self._socket.sendall(data[sent:])
            answer = self.answer(_SECONDS_TO_FORK)
        except OSError as error:  # a timeout is one: something is wrong with the server
            raise ServerGoneError from error
        pid, generation = answer.get("pid"), answer.get("generation")
        if not (isinstance(pid, int) and isinstance(generation, int)):
            raise ServerGoneError
        return pid, generation

    def fileno(self) -> int:
        """A descriptor that is readable once there is an answer or the server has ended."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection, which ends its fork."""
        self._socket.close()

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next object. Raises TimeoutError if it does not arrive in time, ServerGoneError if none will."""
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


class Fork:
    """A fork of the server, which is used like a ``Process``. It has nothing to clean up, so it gets no SIGTERM first.

    ``is_lost``: the server has gone, and the fork with it. ``free`` gets the connection once the fork has ended.
    """

    patient = False

    def __init__(self, pid: int, connection: Connection, free: Callable[[Connection], None] = lambda _: None) -> None:
        self.pid = pid
        self.is_lost = False
        self._connection = connection
        self._free = free
        self._status: int | None = None
        self._entry = cleanup.group(pid)
        cleanup.register(*self._entry)

    def fileno(self) -> int | None:
        """A descriptor that is readable once it has ended."""
        return self._connection.fileno()

    def status(self) -> int | None:
        """Its status if it has ended, else None."""
        if self._status is None:
            try:
                status = self._connection.answer(0).get("status")
            except TimeoutError:
                return None
            except ServerGoneError:
                status = None
            self.is_lost = not isinstance(status, int)
            if self.is_lost:
                end_group(self.pid)
            self._status = status if isinstance(status, int) else -signal.SIGKILL
        return self._status

    def wait(self, seconds: float) -> int | None:
        """Its status once it has ended; None after these seconds."""
        if self._status is None:
            readable([self._connection.fileno()], seconds)
        return self.status()

    def kill(self) -> int:
        """Kill it and its group; returns its status once it has ended."""
        if self.status() is None:
            end_group(self.pid)
        status = self.wait(_LAST_WAIT)
        return -signal.SIGKILL if status is None else status

    def close(self) -> None:
        """Take it off the list: it has ended, and its number may soon be another process's."""
        cleanup.unregister(*self._entry)
        if self._status is not None and not self.is_lost:
            self._free(self._connection)


_HERE = str(Path(__file__).with_name("script_start"))
_PATIENCE = 60.0  # seconds for all imports of a script


def start_script_server(words: Sequence[str], environment: Mapping[str, str], connections: int) -> ForkServer:
    """Start the warm process of a user's script with the words that would run the script.

    It is the script's own interpreter, which imports what the script needs. Each fork runs the script from the
    beginning, with the words of its request (see ``script_start``).

    Raises ServerGoneError if that is not possible, as on any system but Linux.
    """
    if sys.platform != "linux" or os.pathsep in _HERE:
        raise ServerGoneError("no script can be kept warm here")
    python_path = os.environ.get("PYTHONPATH")
    printed, printing = os.pipe()
    state: dict[str, object] = {
        "PYTHONPATH": python_path, "here": _HERE, "printed": printed, "left": [], "noted": [], "own": [], "starts": 0,
        "generation": 0, "ready": False,
    }  # fmt: skip
    try:
        return ForkServer(
            words,
            connections=connections,
            patience=_PATIENCE,
            environment={
                **environment,
                "PYTHONPATH": os.pathsep.join(filter(None, [_HERE, python_path])),
                STATE_VARIABLE: json.dumps(state),
            },
            descriptors=[printed],
            stdout=printing,
        )
    finally:
        os.close(printed)
        os.close(printing)


_LAST_WAIT = 5.0  # seconds to wait for a killed fork


class WaitingProcess:
    """A process that is started before it is needed: it calls ``main`` of a module with a descriptor and these words,
    loads code, and waits at the descriptor for its request, one line of JSON.

    An empty line before that says that it will be needed soon; the end of the file, that it is not needed or that this
    process has ended. It inherits ``environment`` and ``descriptors``. A fork of it may become a warm process
    (``ForkOfWaiting``). Raises CannotStartError.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        reading, self._writing = os.pipe()
        self._started = time.monotonic()
        try:
            self._command = PrintingProcess(
                [*own_python(module), str(reading), *words],
                environment={**(environment or {}), FORK_VARIABLE: UNMARKED},
                descriptors=[reading, *descriptors],
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)
        self.pid = self._command.process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def expect(self) -> None:
        """Tell it that it will be needed soon."""
        with suppress(OSError):  # it has ended, which ``run`` will notice
            os.write(self._writing, b"\n")

    def run(self, request: Mapping[str, Any], limits: Callable[[], Limits], stop: Stop | None = None) -> Ended | None:
        """Send its only request, and watch it as ``attend``; None if it has ended before. Raises StillRunningError."""

        def run(mark: str) -> Ended | None:
            data = json.dumps({**request, MARK: mark}).encode() + b"\n"
            try:
                with os.fdopen(self._writing, "wb", buffering=0) as stream:
                    is_sent = self._command.process.status() is None and stream.write(data) == len(data)
            except OSError:
                is_sent = False
            if is_sent:
                return self._command.watched(limits, stop)
            self._command.end()
            return None

        return run_with_own_mark(run)

    def close(self) -> None:
        """End the process, which has got no request."""
        os.close(self._writing)
        self._command.end()


class ForkOfWaiting:
    """A fork of a waiting process, known by ``lifeline``, our end of a pair of sockets.

    Only the fork has the other end; it is killed when ours is closed.
    """

    def __init__(self, waiting: WaitingProcess, lifeline: socket.socket) -> None:
        self.pid = waiting.pid  # its own is not known yet
        self._lifeline = lifeline

    def wait(self, seconds: float) -> None:
        """Wait, at most these seconds, until it has closed its files, which an ending process does first."""
        if self._lifeline.fileno() >= 0:
            readable([self._lifeline.fileno()], seconds)

    def kill(self) -> None:
        """Kill it, and wait until it has closed its files; the system may list it for a moment longer."""
        if self._lifeline.fileno() >= 0:
            self._lifeline.shutdown(socket.SHUT_WR)
            self.wait(_LAST_WAIT)
            self.close()

    def close(self) -> None:
        """Close our end, which kills a fork that still runs."""
        self._lifeline.close()


ZYGOTE = "biopsy.cli.zygote"
"""The name of a module in a higher layer, which must not be imported here."""


@dataclass(frozen=True, kw_only=True)
class Warming:
    """The processes that were started for checks with the same words.

    ``cold`` loads the code of a check, and waits to become one. ``zygote`` is a fork of it, made before it has opened
    an engine, a model or a file that the words name; it opens these, and is forked for each check.
    """

    zygote: ForkServer
    cold: WaitingProcess

    @classmethod
    def begun(cls, words: Sequence[str], jobs: int) -> Warming:
        """Start the processes for ``jobs`` checks at the same time, without waiting. Raises ServerGoneError."""
        waiting: list[WaitingProcess] = []

        def start(
            words: Sequence[str], *, environment: Mapping[str, str], descriptors: Sequence[int], **_: int
        ) -> ForkOfWaiting:
            lifeline, fork_end = socket.socketpair()
            words, descriptors = [str(fork_end.fileno()), *words], [*descriptors, fork_end.fileno()]
            try:
                waiting.append(WaitingProcess(ZYGOTE, words, environment=environment, descriptors=descriptors))
            except BaseException:
                lifeline.close()
                raise
            finally:
                fork_end.close()
            return ForkOfWaiting(waiting[0], lifeline)

        zygote = ForkServer(words, connections=jobs, start=start)
        return cls(zygote=zygote, cold=waiting[0])

    def close(self) -> None:
        """End both."""
        self.cold.close()
        self.zygote.close()
