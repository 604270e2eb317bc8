"""Forks of a warm process, one for each request; ``warm`` is the side that asks.

This file imports nothing of biopsy, and runs in any Python from 3.8 on: interpreters of users' scripts read it too.
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
"""Under this name, the environment of a warm process says which descriptors are its connections, as JSON."""

STATE_VARIABLE = "BIOPSY_WARM_START"
"""Under this name, that of the warm process of a script says what it is to know, as JSON."""

START_VARIABLE = "BIOPSY_START"
"""A process that biopsy starts carries a word of its own in this, which is on the list before there is a process."""

FORK_VARIABLE = "BIOPSY_FORK"
"""A process that will fork, or wait, for requests is started with ``UNMARKED`` in this; see ``carry_mark``."""

UNMARKED = "0" * 16
MARK = "mark"
"""The key of a request under which its mark stands, which is as long as ``UNMARKED``."""

KEEP_VARIABLE = "BIOPSY_KEEP_PROCESSES"
"""If this is set, processes that a check leaves in the background stay, such as a server for the next check."""

_LOOK_AT_FORKS = 0.002  # seconds, where no descriptor tells of their ends
_AT_ONCE = 1 << 16  # bytes read at once
_MOST_DESCRIPTORS = 4  # that come with a request


def fork() -> tuple[int, int]:
    """As ``os.fork``: 0 in the fork, its number here; and a descriptor to be closed once the fork has ended.

    The fork is killed when this process is gone, and with it that descriptor: only where the system can send a signal
    of our choice for that, which is Linux.
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
    """Have this process killed once nobody has the other end of a pipe or socket any more, if the system can do that.

    Who has lost it before is not told.
    """
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        try:
            fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            pass  # it ends with its own work


def is_parted_fork(lifeline: int) -> bool:
    """Fork, and say whether this is the fork. That leads a session of its own and prints nowhere; nobody waits for it.

    It is killed once nobody has the other end of ``lifeline``, a socket, which is for this process to close besides.
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
        os._exit(0)  # it has gone already
    return True


def carry_mark(mark: str) -> None:
    """Have this process show a mark as its ``FORK_VARIABLE``, and all that it forks from now on.

    A fork shows the environment that its program was started with, whatever stands in ``os.environ``: so the mark is
    written where that stands in memory. Only where /proc gives that to read and write.
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
    """Whether a fork of this process loses no thread: there is only one, or the others end by themselves before it.

    OpenBLAS ends its own, and starts others when it needs them. It is tried; only Linux tells of threads.
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
    _unless_gone(os.killpg, leader, number)  # macOS says by EPERM that everyone has gone


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
    """Whether processes stay that a check leaves in the background."""
    return bool(os.environ.get(KEEP_VARIABLE))


def sacrifice(pid: int) -> None:
    """Where memory runs out, have the system end this process rather than the one that waits for it."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as score:
            score.write("800")
    except OSError:
        pass


def connections_of_environment() -> list[int]:
    """The descriptors that the environment names. It loses that, and the marks of our start: forks inherit none."""
    os.environ.pop(START_VARIABLE, None)
    os.environ.pop(FORK_VARIABLE, None)
    descriptors = json.loads(os.environ.pop(CONNECTIONS_VARIABLE))
    assert isinstance(descriptors, list)
    return descriptors


class ForkLoop:
    """Waits for requests and for the ends of forks, and passes both on.

    ``before_fork`` is called before each fork is made, and says of which generation it is: forks of the same one have
    found the same loaded. ``idle`` is called whenever a fork has ended and none is left. ``listening`` is a datagram
    socket over which further connections come, each with a message of its own, as long as one of the first ones lasts.
    """

    def __init__(
        self,
        descriptors: list[int],
        *,
        before_fork: Callable[[], int] = lambda: 0,
        idle: Callable[[], None] = lambda: None,
        listening: int | None = None,
    ) -> None:
        self._clients = [_Client(descriptor) for descriptor in descriptors]
        self._first = list(self._clients)
        self._listening = None if listening is None else _socket.socket(fileno=listening)
        self._before_fork = before_fork
        self._idle = idle

    def next_request(self, *, silent: bool = False) -> dict[str, Any]:
        """Serve until nobody listens any more, and end this process then. It returns in each fork: with its request.

        A fork leads a session of its own, and prints into the descriptor that came with the request. ``silent``: who
        asks knows already that this process is ready. Descriptors that came after that are in the request.
        """
        try:
            self._clients[0].connection.sendall(b"" if silent else b'{"ready": true, "pid": %d}\n' % os.getpid())
        except OSError:
            pass  # it will be seen below that nobody listens
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
        os._exit(0)  # nothing is left to be done, and what is loaded would take a while to take itself apart

    def _ready(self) -> Iterator[_Client]:
        """Clients that may have something to say, or whose fork may have ended."""
        sources = [source for client in self._clients for source in (client.connection, client.end)]
        blind = any(client.fork and client.end is None for client in self._clients)
        waited_for = [source for source in (*sources, self._listening) if source is not None]
        readable, _, _ = select.select(waited_for, [], [], _LOOK_AT_FORKS if blind else None)
        if self._listening is not None and self._listening in readable:
            try:  # one more client, whose connection has come
                beside = self._listening.recvmsg(1, _socket.CMSG_LEN(4))[1]
                self._clients += [_Client(descriptor) for descriptor in _descriptors(beside)]
            except OSError:
                pass
        for client in list(self._clients):
            is_blind = client.fork and client.end is None
            if is_blind or client.connection in readable or client.end in readable:
                yield client

    def _attend(self, client: _Client) -> dict[str, Any] | None:
        """Do what is due for a client. A request only in the fork that is to do it."""
        if not client.fork:
            return self._begin(client)
        if select.select([client.connection], [], [], 0)[0]:
            raise ConnectionError("who asked for this has gone")
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
        self.end: int | None = None  # readable once the fork has ended, where the platform has such a thing

    def close(self) -> None:
        self.connection.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)

    def received(self) -> tuple[dict[str, Any], list[int]]:
        """A request, and descriptors: that to print into, and what else has come. Raises OSError and ValueError."""
        data, beside, _, _ = self.connection.recvmsg(_AT_ONCE, _socket.CMSG_LEN(4 * _MOST_DESCRIPTORS))
        while data and not data.endswith(b"\n"):
            more = self.connection.recv(_AT_ONCE)
            if not more:
                raise ConnectionError("who asked for this has gone")
            data += more
        descriptors = _descriptors(beside)
        if not descriptors:
            raise ValueError("a request comes without a descriptor")
        return json.loads(data), descriptors

    def reaped(self, flags: int) -> int | None:
        """The status of the fork, once it has ended; what it started and left behind is ended first."""
        if self.end is not None and flags and not select.select([self.end], [], [], 0)[0]:
            return None
        if self.end is not None and not keeps_processes():
            end_group(self.fork)  # while its number still is its own
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
    """Those that came beside a message."""
    data = b"".join(each[2] for each in beside)
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) // 4 * 4, 4)]


def _become_a_process(clients: list[_Client], output: int) -> None:
    """In the fork: what a process of its own would be."""
    try:
        for client in clients:
            client.close()
        os.setsid()
        sacrifice(os.getpid())
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
    except BaseException:
        os.kill(os.getpid(), signal.SIGKILL)  # a status could be that of the work
