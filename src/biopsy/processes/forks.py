"""Forks of a warm process, one for each request; ``warm`` is the asking side.

Interpreters of users' scripts import this file, too: it must not import biopsy and must run in Python 3.8 or newer.
"""

from __future__ import annotations

import _socket
import json
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

CONNECTIONS_VARIABLE = "BIOPSY_FORK_CONNECTIONS"
"""Environment variable of a warm process: the descriptors of its connections, as JSON."""

STATE_VARIABLE = "BIOPSY_WARM_START"
"""Environment variable of the warm process of a script: its initial state, as JSON."""

START_VARIABLE = "BIOPSY_START"
"""Environment variable of every process that biopsy starts: a mark that is on the list before the process exists."""

FORK_VARIABLE = "BIOPSY_FORK"
"""Environment variable of a process that will fork or wait for requests: at first ``UNMARKED``; see ``carry_mark``."""

UNMARKED = "0" * 16
MARK = "mark"
"""The key of the mark in a request; a mark is as long as ``UNMARKED``."""

KEEP_VARIABLE = "BIOPSY_KEEP_PROCESSES"
"""If this is set, processes that a check leaves in the background stay, such as a server for the next check."""

_LOOK_AT_FORKS = 0.002  # seconds between looks at forks on a platform without pidfd
_AT_ONCE = 1 << 16  # bytes to read at a time
_MOST_DESCRIPTORS = 4  # with one request


def fork() -> tuple[int, int]:
    """As ``os.fork`` (0 in the fork, its number here), with a descriptor to close once the fork has ended.

    On Linux, which can send SIGKILL when that descriptor is closed, the fork is killed when this process ends.
    """
    alive, kept_open = os.pipe()
    try:
        parent, child = os.getpid(), os.fork()
    except OSError:
        os.close(alive)
        os.close(kept_open)
        raise
    if child:
        os.close(alive)
        return child, kept_open
    os.close(kept_open)
    end_with(alive)
    if os.getppid() != parent:
        os._exit(4)
    return 0, -1


def end_with(alive: int) -> None:
    """Have this process killed when the other end of a pipe or socket is closed, if the system can do that.

    An end that is already closed does not kill it.
    """
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        try:
            fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            pass  # then it ends when its own work does


def is_detached_fork(lifeline: int) -> bool:
    """Fork; returns whether this is the fork, which leads a session of its own, prints nowhere and is not waited for.

    It is killed when the other end of ``lifeline``, a socket, is closed; the parent must close its own copy.
    """
    if os.fork():
        return False
    os.setsid()
    os.set_inheritable(lifeline, False)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    end_with(lifeline)
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(0)  # the other end is closed already
    return True


def carry_mark(mark: str) -> None:
    """Show a mark as ``FORK_VARIABLE`` in the environment of this process and of its later forks.

    /proc shows the environment that the program was started with, whatever ``os.environ`` says, so the mark is written
    into that memory, if /proc allows it.
    """
    os.environ.pop(FORK_VARIABLE, None)
    before, after = (f"\0{FORK_VARIABLE}={text}".encode() for text in (UNMARKED, mark))
    try:
        with open("/proc/self/environ", "rb") as environment:
            place = (b"\0" + environment.read()).find(before)
        with open("/proc/self/stat", "rb") as stat:
            start = int(stat.read().rpartition(b")")[2].split()[47])  # env_start
        if place >= 0 and len(after) == len(before):
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start + place)
                memory.write(after[1:])
    except OSError:
        pass


def fork_loses_no_thread() -> bool:
    """Whether a fork of this process loses no thread: there is only one, or the others end by themselves before a fork.

    OpenBLAS ends its threads then, and starts new ones when it needs them. This is tried with a fork, on Linux only.
    """
    if len(os.listdir("/proc/self/task")) == 1:
        return True
    child = os.fork()
    if child == 0:
        os._exit(0)
    alone = len(os.listdir("/proc/self/task")) == 1
    os.waitpid(child, 0)
    return alone


def signal_group(leader: int, number: int) -> None:
    """Send a signal to every process of a group."""
    _unless_gone(os.killpg, leader, number)  # macOS raises EPERM if all of them have ended


def end_group(leader: int) -> None:
    """Kill a process and its group."""
    signal_group(leader, signal.SIGKILL)
    _unless_gone(os.kill, leader, signal.SIGKILL)  # it may not lead a group yet


def _unless_gone(send: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        pass


def keeps_processes() -> bool:
    """Whether processes that a check leaves in the background may stay."""
    return bool(os.environ.get(KEEP_VARIABLE))


def sacrifice(pid: int) -> None:
    """If memory runs out, have the system end this process rather than the one that waits for it."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as score:
            score.write("800")
    except OSError:
        pass


def connections_of_environment() -> list[int]:
    """The descriptors that the environment names, which loses them and the marks, so that forks do not inherit them."""
    os.environ.pop(START_VARIABLE, None)
    os.environ.pop(FORK_VARIABLE, None)
    descriptors = json.loads(os.environ.pop(CONNECTIONS_VARIABLE))
    assert isinstance(descriptors, list)
    return descriptors


class ForkLoop:
    """Makes a fork for each request, and reports the end of each fork.

    ``before_fork`` is called before each fork and returns its generation: forks of one generation have the same modules
    loaded. ``idle`` is called whenever the last running fork has ended. ``listening`` is a datagram socket over which
    further connections come, one with each message, as long as one of the first ones is open.
    """

    def __init__(
        self,
        descriptors: list[int],
        *,
        before_fork: Callable[[], int] = lambda: 0,
        idle: Callable[[], object] = lambda: None,
        listening: int | None = None,
    ) -> None:
        self._clients = [_Client(descriptor) for descriptor in descriptors]
        self._first = list(self._clients)
        self._listening = None if listening is None else _socket.socket(fileno=listening)
        self._before_fork = before_fork
        self._idle = idle

    def next_request(self, *, silent: bool = False) -> dict[str, Any]:
        """Serve until all connections are closed, then end this process. Returns in each fork, with its request.

        A fork leads a session of its own, and prints into the first descriptor that came with the request; other
        descriptors are in the request. ``silent``: do not report that this process is ready.
        """
        try:
            self._clients[0].connection.sendall(b"" if silent else b'{"ready": true, "pid": %d}\n' % os.getpid())
        except OSError:
            pass  # a closed connection is noticed below
        while any(client in self._clients for client in self._first):
            for client in self._ready():
                try:
                    request = self._attend(client)
                except (OSError, ValueError):
                    self._clients.remove(client)
                    client.connection.close()
                    if client.fork:
                        end_group(client.fork)
                        client.reaped(0)
                else:
                    if request is not None:
                        return request
        os._exit(0)  # at once, since a regular exit would take a while to free what is loaded

    def _ready(self) -> Iterator[_Client]:
        """Clients that may have sent a request, or whose fork may have ended."""
        sources = [source for client in self._clients for source in (client.connection, client.end)]
        blind = any(client.fork and client.end is None for client in self._clients)
        waited_for = [source for source in (*sources, self._listening) if source is not None]
        readable, _, _ = select.select(waited_for, [], [], _LOOK_AT_FORKS if blind else None)
        if self._listening is not None and self._listening in readable:
            try:  # a further connection
                beside = self._listening.recvmsg(1, _socket.CMSG_LEN(4))[1]
                self._clients += [_Client(descriptor) for descriptor in _descriptors(beside)]
            except OSError:
                pass
        for client in list(self._clients):
            is_blind = client.fork and client.end is None
            if is_blind or client.connection in readable or client.end in readable:
                yield client

    def _attend(self, client: _Client) -> dict[str, Any] | None:
        """Serve a client. Returns its request in the new fork, None in this process."""
        if not client.fork:
            return self._begin(client)
        if select.select([client.connection], [], [], 0)[0]:
            raise ConnectionError("the client has closed the connection")
        status = client.reaped(os.WNOHANG)
        if status is not None:
            client.connection.sendall(b'{"status": %d}\n' % status)
            if not any(other.fork for other in self._clients):
                self._idle()
        return None

    def _begin(self, client: _Client) -> dict[str, Any] | None:
        request, (output, *more) = client.received()
        mark = request.pop(MARK, None)
        generation = self._before_fork()
        client.fork, client.lifeline = fork()
        if client.fork == 0:
            _become_a_process(self._clients, output)
            if mark is not None:
                carry_mark(mark)
            return dict(request, descriptors=more) if more else request
        for descriptor in (output, *more):
            os.close(descriptor)
        client.end = os.pidfd_open(client.fork) if hasattr(os, "pidfd_open") else None
        answer = {"pid": client.fork, "generation": generation}
        client.connection.sendall(json.dumps(answer).encode() + b"\n")
        return None


class _Client:
    """A connection, and the fork that runs for it."""

    def __init__(self, descriptor: int) -> None:
        self.connection = _socket.socket(fileno=descriptor)
        self.fork = 0
        self.lifeline = -1
        self.end: int | None = None  # a pidfd: readable once the fork has ended; None on a platform without

    def close(self) -> None:
        self.connection.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)

    def received(self) -> tuple[dict[str, Any], list[int]]:
        """A request, and the descriptors that came with it, at least one. Raises OSError and ValueError."""
        data, beside, _, _ = self.connection.recvmsg(_AT_ONCE, _socket.CMSG_LEN(4 * _MOST_DESCRIPTORS))
        while data and not data.endswith(b"\n"):
            more = self.connection.recv(_AT_ONCE)
            if not more:
                raise ConnectionError("the client has closed the connection")
            data += more
        descriptors = _descriptors(beside)
        if not descriptors:
            raise ValueError("a request comes without a descriptor")
        return json.loads(data), descriptors

    def reaped(self, flags: int) -> int | None:
        """The status of the fork if it has ended; the processes that it left behind are ended first."""
        if self.end is not None and flags and not select.select([self.end], [], [], 0)[0]:
            return None
        if self.end is not None and not keeps_processes():
            end_group(self.fork)  # before waitpid frees its number
        done, status = os.waitpid(self.fork, flags if self.end is None else 0)
        if not done:
            return None
        if self.end is not None:
            os.close(self.end)
        elif not keeps_processes():
            end_group(self.fork)
        os.close(self.lifeline)
        self.fork, self.lifeline, self.end = 0, -1, None
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in a message's ancillary data."""
    data = b"".join(each[2] for each in beside)
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) // 4 * 4, 4)]


def _become_a_process(clients: list[_Client], output: int) -> None:
    """In the fork: become like a process that was started separately."""
    try:
        for client in clients:
            client.close()
        os.setsid()
        sacrifice(os.getpid())
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
    except BaseException:
        os.kill(os.getpid(), signal.SIGKILL)  # an exit status could be taken for that of the work
