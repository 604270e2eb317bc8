"""Other machines without another machine: processes that share no folder with us, and get all they need by pipes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.session.conditions import MachineKind, this_machine
from biopsy.session.machines import MachineLostError, OtherMachines

_CHUNK = 1 << 16


class NodeProcess:
    """A machine: a process whose current folder is its own.

    ``packages`` is a folder of packages that only this one has.
    """

    def __init__(self, folder: Path, packages: Path | None = None) -> None:
        folder.mkdir()
        self.name = folder.name
        self.sent: list[Path] = []
        self._number = 0
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._stops, their_stops = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, their_stops, folder, packages))
        self.process.start()
        theirs.close()
        their_stops.close()
        self.kind: MachineKind = self._pipe.recv()

    def lives(self) -> bool:
        return self.process.is_alive()

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        try:
            self._pipe.send((self._number, task))
            while True:
                said = self._pipe.recv()
                if isinstance(said, Answer):
                    return said
                self._send(files[said])
        except (EOFError, OSError) as error:
            raise MachineLostError("the process has gone") from error
        finally:
            with self._lock:
                self._number += 1

    def _send(self, path: Path) -> None:
        self.sent.append(path)
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                self._pipe.send(chunk)
        self._pipe.send(b"")

    def stop(self) -> None:
        with self._lock, suppress(OSError):
            self._stops.send(self._number)

    def close(self) -> None:
        self._pipe.close()
        self._stops.close()
        self.process.join()


def _serve(pipe: Connection, stops: Connection, folder: Path, packages: Path | None) -> None:
    os.chdir(folder)
    sys.path[:0] = [] if packages is None else [str(packages)]
    pipe.send(this_machine())
    node = TaskHost(folder)

    def received(digest: str) -> Iterator[bytes]:
        pipe.send(digest)
        yield from iter(pipe.recv, b"")

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                node.stop(stops.recv())

    threading.Thread(target=listen, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            number, task = pipe.recv()
            pipe.send(node.run(number, task, received))
    node.close()


class NodeProcesses(OtherMachines):
    """Workers on such machines; ``nodes`` are all that were ever made, the n-th with the n-th of ``packages``."""

    def __init__(
        self, folder: Path, room: int, packages: Sequence[Path | None] = (), kinds: Sequence[MachineKind] = ()
    ) -> None:
        self.nodes: list[NodeProcess] = []
        self._folder = folder
        self._packages = packages
        self._numbers = itertools.count()
        super().__init__(self._made, room, kinds)

    def _made(self) -> NodeProcess:
        number = next(self._numbers)
        packages = self._packages[number] if number < len(self._packages) else None
        node = NodeProcess(self._folder / f"node{number}", packages)
        self.nodes.append(node)
        return node


Machines = Callable[[int], NodeProcesses]
"""Makes workers that run as many checks at a time as it is told."""
