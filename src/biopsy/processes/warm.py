"""Processes that are ready before they are needed: one that forks for each request, also for a user's script, and
one that waits for its words.
"""

from __future__ import annotations

import json
import os
import queue
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
from biopsy.processes.forks import CONNECTIONS_VARIABLE, FORK_VARIABLE, MARK, STATE_VARIABLE, UNMARKED
from biopsy.processes.own_process import own_python
from biopsy.processes.process import CannotStartError, PrintingProcess, Process, run_with_own_mark
from biopsy.processes.watch import Ended, Limits, Pipe, Stop, attend, readable

_SECONDS_TO_FORK = 120
_SECONDS_TO_END = 5


class ServerGoneError(Exception):
    """The server has ended, cannot serve, or says something that is no answer."""


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
        start: Callable[..., Process | ForkOfWaiting] = Process,
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
        self._connections = [Connection(ours) for ours, _ in pairs]
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
        """Have a fork do what a request says, and watch it as ``attend`` does. Raises ServerGoneError.

        ``begun`` is told the generation of the fork: those of the same one have found the same loaded.
        """
        if not self.is_warm(max(0.0, self._warm_by - time.monotonic())):
            raise ServerGoneError
        connection = self._free.get()

        def run(mark: str) -> Ended:
            with Pipe() as pipe:
                pid, generation = connection.ask({**request, MARK: mark}, pipe.writing)
                fork = _Fork(pid, connection)
                pipe.handed_on()
                begun(generation)
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


class Connection:
    """The asking end of a socket to a process that forks for each request, and tells of the fork's start and end."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._read = b""

    def ask(self, request: Mapping[str, Any], *descriptors: int) -> tuple[int, int]:
        """Have a fork begin, which prints into the first of the descriptors: its number, and its generation.

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
        """Readable once there is an answer, or the server has gone."""
        return self._socket.fileno()

    def close(self) -> None:
        """Tell the server that nobody listens any more."""
        self._socket.close()

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

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
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


# A warm process for a script of the user: its very interpreter, which has imported what the script needs.
#
# Each fork of it runs the script from the beginning, with words of its own; ``script_start`` is what happens there.

_HERE = str(Path(__file__).with_name("script_start"))
_PATIENCE = 60.0  # seconds for all imports of a script


def start_script_server(words: Sequence[str], environment: Mapping[str, str], connections: int) -> ForkServer:
    """Start the warm process of a script, by the words that would run it. A fork gets its own words from a request.

    Raises ServerGoneError where that is not possible: only Linux tells what an import does.
    """
    if sys.platform != "linux" or os.pathsep in _HERE:
        raise ServerGoneError("no script can be kept warm here")
    theirs = os.environ.get("PYTHONPATH")
    printed, printing = os.pipe()
    told: dict[str, object] = {
        "PYTHONPATH": theirs, "here": _HERE, "printed": printed, "left": [], "noted": [], "own": [], "starts": 0,
        "generation": 0, "ready": False,
    }  # fmt: skip
    try:
        return ForkServer(
            words,
            connections=connections,
            patience=_PATIENCE,
            environment={
                **environment,
                "PYTHONPATH": os.pathsep.join(filter(None, [_HERE, theirs])),
                STATE_VARIABLE: json.dumps(told),
            },
            descriptors=[printed],
            stdout=printing,
        )
    finally:
        os.close(printed)
        os.close(printing)


# A process of ours that is started before it is needed: it loads, waits for its words, and then is as any other.
#
# What it has loaded can serve twice: a fork of it, made before it knows more, may become a warm process
# (``ForkOfWaiting``). Nothing of what the fork does comes back to it.

_LAST_WAIT = 5.0  # seconds for a fork that was killed just now


class WaitingProcess:
    """Calls ``main`` of a module, with a descriptor and these words, at once; it waits there for one line of JSON.

    Before that, it may be told by an empty line that it will be needed soon. It sees the end of the file if it is not
    needed, or if this process has gone. ``environment`` and ``descriptors`` are handed on. Raises CannotStartError.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        theirs, self._ours = os.pipe()
        self._started = time.monotonic()
        try:
            self._command = PrintingProcess(
                [*own_python(module), str(theirs), *words],
                environment={**(environment or {}), FORK_VARIABLE: UNMARKED},
                descriptors=[theirs, *descriptors],
            )
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self.pid = self._command.process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def expect(self) -> None:
        """Tell it that it will be needed soon."""
        with suppress(OSError):  # it has gone, which who needs it will see
            os.write(self._ours, b"\n")

    def run(self, request: Mapping[str, Any], limits: Callable[[], Limits], stop: Stop | None = None) -> Ended | None:
        """Have it do what a request says, and watch it from now on as ``attend`` does; None if it has ended before.

        Once only. Raises StillRunningError.
        """

        def run(mark: str) -> Ended | None:
            data = json.dumps({**request, MARK: mark}).encode() + b"\n"
            try:
                with os.fdopen(self._ours, "wb", buffering=0) as stream:
                    is_told = self._command.process.status() is None and stream.write(data) == len(data)
            except OSError:
                is_told = False
            if is_told:
                return self._command.watched(limits, stop)
            self._command.end()
            return None

        return run_with_own_mark(run)

    def close(self) -> None:
        """End it: it is not needed."""
        os.close(self._ours)
        self._command.end()


class ForkOfWaiting:
    """A fork of a waiting process, as this process sees it: by ``lifeline``, our end of a pair of sockets.

    The fork alone has the other end, and is killed when ours is closed.
    """

    def __init__(self, waiting: WaitingProcess, lifeline: socket.socket) -> None:
        self.pid = waiting.pid  # it has none of its own yet
        self._lifeline = lifeline

    def wait(self, seconds: float) -> None:
        """Wait until it has let go of its files, which an ending process does first, at most so long."""
        if self._lifeline.fileno() >= 0:
            readable([self._lifeline.fileno()], seconds)

    def kill(self) -> None:
        """End it, and wait until it has let go of its files; the system may list it for a moment longer."""
        if self._lifeline.fileno() >= 0:
            self._lifeline.shutdown(socket.SHUT_WR)
            self.wait(_LAST_WAIT)
            self.close()

    def close(self) -> None:
        """Free our end; one that still runs is killed by that."""
        self._lifeline.close()


_ZYGOTE = "biopsy.cli.zygote"
"""It is named, not imported: the command line stands above this layer."""


@dataclass(frozen=True, kw_only=True)
class Warming:
    """What was started for checks of some words.

    ``cold`` loads the code of a check, and waits to be one: a process of its own. ``zygote`` is a fork of it, made
    before it has opened an engine, a model or a file that the words name; it does all that, and is forked for each
    check.
    """

    zygote: ForkServer
    cold: WaitingProcess

    @classmethod
    def begun(cls, words: Sequence[str], jobs: int) -> Warming:
        """The processes for as many checks at once, which are not waited for.

        Raises ServerGoneError where none can be started.
        """
        waiting: list[WaitingProcess] = []

        def start(
            words: Sequence[str], *, environment: Mapping[str, str], descriptors: Sequence[int], **_: int
        ) -> ForkOfWaiting:
            lifeline, theirs = socket.socketpair()
            words, descriptors = [str(theirs.fileno()), *words], [*descriptors, theirs.fileno()]
            try:
                waiting.append(WaitingProcess(_ZYGOTE, words, environment=environment, descriptors=descriptors))
            except BaseException:
                lifeline.close()
                raise
            finally:
                theirs.close()
            return ForkOfWaiting(waiting[0], lifeline)

        zygote = ForkServer(words, connections=jobs, start=start)
        return cls(zygote=zygote, cold=waiting[0])

    def close(self) -> None:
        """End both: they are not needed."""
        self.cold.close()
        self.zygote.close()
