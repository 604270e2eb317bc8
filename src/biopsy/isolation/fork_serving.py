"""The side of a warm process that makes a fork for each request of a ``ForkServer``, which tells the protocol."""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from biopsy.isolation.fork import fork
from biopsy.isolation.groups import end_group, sacrifice

Task: TypeAlias = Callable[[Mapping[str, Any]], int]
"""Does in a fork what a request says, and returns the exit status."""

_LOOK_AT_FORKS = 0.002  # seconds, where no descriptor tells of their ends


def arguments() -> list[str]:
    """The words that the ``ForkServer`` was given."""
    return sys.argv[2:]


def serve_forks(task: Task) -> NoReturn:
    """Do a task in a fork for each request, until nobody listens any more; then end this process."""
    connections = [socket.socket(fileno=descriptor) for descriptor in json.loads(sys.argv[1])]
    gc.collect()
    gc.freeze()  # what is loaded now is shared with the forks, and not copied by their collector's marks
    with suppress(OSError):
        connections[0].sendall(b'{"ready": true}\n')
    _Server(connections, task).serve()
    os._exit(0)  # nothing is left to be done, and what is loaded would take a while to take itself apart


@dataclass
class _Client:
    """A connection, and the fork that runs for it."""

    connection: socket.socket
    fork: int = 0
    lifeline: int = -1
    end: int | None = None  # readable once the fork has ended, where the platform has such a thing

    def close(self) -> None:
        self.connection.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)


class _Server:
    """Waits for requests and for the ends of forks, and passes both on."""

    def __init__(self, connections: Sequence[socket.socket], task: Task) -> None:
        self._clients = [_Client(connection) for connection in connections]
        self._task = task

    def serve(self) -> None:
        """Serve until nobody listens any more."""
        while self._clients:
            for client in self._ready():
                try:
                    self._attend(client)
                except (OSError, ValueError):
                    self._part_with(client)

    def _ready(self) -> list[_Client]:
        """Clients that may have something to say, or whose fork may have ended."""
        sources = [client.connection.fileno() for client in self._clients]
        sources += [client.end for client in self._clients if client.end is not None]
        blind = any(client.fork and client.end is None for client in self._clients)
        readable, _, _ = select.select(sources, [], [], _LOOK_AT_FORKS if blind else None)
        return [
            client
            for client in self._clients
            if client.connection.fileno() in readable or client.end in readable or (client.fork and client.end is None)
        ]

    def _attend(self, client: _Client) -> None:
        if not client.fork:
            self._begin(client)
            return
        if client.connection in select.select([client.connection], [], [], 0)[0]:
            raise ConnectionError("who asked for this has gone")
        status = _reaped(client, os.WNOHANG)
        if status is not None:
            client.connection.sendall(json.dumps({"status": status}).encode() + b"\n")

    def _begin(self, client: _Client) -> None:
        data, received, _, _ = socket.recv_fds(client.connection, 1 << 16, 1)
        while data and not data.endswith(b"\n"):
            more = client.connection.recv(1 << 16)
            if not more:
                raise ConnectionError("who asked for this has gone")
            data += more
        request, (output,) = json.loads(data), received
        client.fork, client.lifeline = fork()
        if client.fork == 0:
            for other in self._clients:
                other.close()
            _run(self._task, request, output)
        os.close(output)
        client.end = os.pidfd_open(client.fork) if hasattr(os, "pidfd_open") else None
        client.connection.sendall(json.dumps({"pid": client.fork}).encode() + b"\n")

    def _part_with(self, client: _Client) -> None:
        self._clients.remove(client)
        client.connection.close()
        if client.fork:
            end_group(client.fork)
            _reaped(client, 0)


def _reaped(client: _Client, flags: int) -> int | None:
    """The status of a client's fork, once it has ended; what it started and left behind is ended first."""
    if client.end is not None and flags and not select.select([client.end], [], [], 0)[0]:
        return None
    if client.end is not None:
        end_group(client.fork)  # while its number still is its own
    done, status = os.waitpid(client.fork, flags if client.end is None else 0)
    if not done:
        return None
    if client.end is None:
        end_group(client.fork)
    else:
        os.close(client.end)
    os.close(client.lifeline)
    client.fork, client.lifeline, client.end = 0, -1, None
    return os.waitstatus_to_exitcode(status)


def _run(task: Task, request: Mapping[str, Any], output: int) -> NoReturn:
    """In the fork: become what a process of its own would be, do the task, end."""
    status = 4
    try:
        os.setsid()
        sacrifice(os.getpid())
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        status = task(request)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
