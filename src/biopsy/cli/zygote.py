"""The warm process behind checks that are our own ``run``: engine and files are loaded once, each check is a fork.

Talks over sockets, one JSON object a line: ``{"ready": true}`` on the first one when warm, or an end of file if these
words cannot be served; then on any of them, one check at a time: for ``{"words": [...], "BIOPSY_VERDICT": path}``,
which comes with the descriptor to print into, first ``{"pid": n}``, then ``{"status": n}``, negative for a signal. A
child ends with its connection, and the zygote with the last of them.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.process import end_group, sacrifice
from biopsy.isolation.cleanup import VERDICT_VARIABLE


def main() -> None:
    """Serve the connections whose descriptors are the first argument; the second holds the words of the check."""
    connections = [socket.socket(fileno=descriptor) for descriptor in json.loads(sys.argv[1])]
    if not warm_up(json.loads(sys.argv[2])):
        return
    gc.collect()
    gc.freeze()  # what is loaded now is shared with the children, and not copied by their collector's marks
    connections[0].sendall(b'{"ready": true}\n')
    _Server(connections).serve()
    os._exit(0)  # nothing is left to be done, and what is loaded would take a while to take itself apart


def warm_up(words: Sequence[str]) -> bool:
    """Load what the check will need; False if it is no ``run``, or one that may not be forked."""
    command = parse(words)
    if not isinstance(command, OwnRun):
        return False
    from biopsy.cli.arguments.engine_options import engine_specs
    from biopsy.cli.commands import COMMANDS
    from biopsy.cli.parser import parser_of
    from biopsy.engines.registry import find_class

    parser = parser_of(Path(command.program).name, next(each for each in COMMANDS if each.words == ("run",)))
    try:
        args = parser.parse_known_args(list(command.options))[0]
        names = {spec.name for spec in engine_specs(args)}
        warm = all(find_class(name).forks_warm for name in names)
    except errors.BiopsyError:
        return False  # the check itself will tell what is wrong with it
    if not warm or args.data_loader_script:
        return False
    _load_code(names)
    _load_files((*(args.load_inputs or ()), *(args.load_outputs or ())))
    return True


def _load_code(names: set[str]) -> None:
    """Import everything that a check uses, and pay what the first session of an engine costs."""
    import biopsy.cli.console
    import biopsy.cli.run.building
    import biopsy.cli.run.mismatch
    import biopsy.cli.run.report
    import biopsy.cli.run.settings
    import biopsy.comparison.compare
    import biopsy.comparison.describe
    import biopsy.engines.feeding
    import biopsy.engines.runner
    import biopsy.tensors.generate  # noqa: F401
    from biopsy.engines.registry import create

    for name in names:
        with suppress(errors.BiopsyError):  # an engine that is missing will be told of by the check
            create(name).warm_up()


def _load_files(paths: Sequence[Path]) -> None:
    """Read inputs and golden values that stay the same, once for all checks."""
    from biopsy.tensors import files

    for path in paths:
        with suppress(errors.BiopsyError):
            files.keep(path)


@dataclass
class _Client:
    """A connection, and the child that runs for it."""

    connection: socket.socket
    child: int = 0
    end: int | None = None  # readable once the child has ended, where the platform has such a thing


class _Server:
    """Waits for requests and for the ends of children, and passes both on."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._clients = [_Client(connection) for connection in connections]

    def serve(self) -> None:
        """Serve until nobody listens any more."""
        while self._clients:
            for client in self._ready():
                try:
                    self._attend(client)
                except (OSError, ValueError):
                    self._part_with(client)

    def _ready(self) -> list[_Client]:
        """Clients that may have something to say, or whose child may have ended."""
        waited_for = [client.connection.fileno() for client in self._clients]
        waited_for += [client.end for client in self._clients if client.end is not None]
        blind = any(client.child and client.end is None for client in self._clients)
        readable, _, _ = select.select(waited_for, [], [], _LOOK_AT_CHILDREN if blind else None)
        return [
            client
            for client in self._clients
            if client.connection.fileno() in readable or client.end in readable or (client.child and client.end is None)
        ]

    def _attend(self, client: _Client) -> None:
        if not client.child:
            self._begin(client)
            return
        if client.connection in select.select([client.connection], [], [], 0)[0]:
            raise ConnectionError("who asked for this check has gone")
        status = _reaped(client, os.WNOHANG)
        if status is not None:
            client.connection.sendall(json.dumps({"status": status}).encode() + b"\n")

    def _begin(self, client: _Client) -> None:
        data, sent, _, _ = socket.recv_fds(client.connection, 1 << 16, 1)
        while data and not data.endswith(b"\n"):
            data += client.connection.recv(1 << 16)
        request = json.loads(data)
        child = os.fork()
        if child == 0:
            for other in self._clients:
                other.connection.close()
            _check(request, sent[0])
        os.close(sent[0])
        client.child = child
        client.end = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
        client.connection.sendall(json.dumps({"pid": child}).encode() + b"\n")

    def _part_with(self, client: _Client) -> None:
        self._clients.remove(client)
        client.connection.close()
        if client.child:
            end_group(client.child)
            _reaped(client, 0)


_LOOK_AT_CHILDREN = 0.002  # seconds


def _reaped(client: _Client, flags: int) -> int | None:
    """The status of a client's child, once it has ended; what it started and left behind is ended first."""
    if client.end is not None and flags and not select.select([client.end], [], [], 0)[0]:
        return None
    if client.end is not None:
        end_group(client.child)  # while its number still is its own
    done, status = os.waitpid(client.child, flags if client.end is None else 0)
    if not done:
        return None
    if client.end is None:
        end_group(client.child)
    else:
        os.close(client.end)
    client.child, client.end = 0, None
    return os.waitstatus_to_exitcode(status)


def _check(request: dict[str, object], output: int) -> NoReturn:
    """In the fork: become what a cold process would be, run the command, end."""
    status = 4
    try:
        os.setsid()
        sacrifice(os.getpid())
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        os.environ[VERDICT_VARIABLE] = str(request[VERDICT_VARIABLE])
        words = request["words"]
        assert isinstance(words, list)
        sys.argv = [Path(words[0]).name]
        from biopsy.cli.app import main as run_command

        status = run_command(words[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
