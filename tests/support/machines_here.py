"""Machines of this process: each runs its checks in a folder of its own, when the test lets it be borrowed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.session.conditions import this_machine
from biopsy.session.machines import OtherMachines


class MachineHere:
    """A task host in this process."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.name = name
        self.kind = this_machine()
        self.is_given_back = False
        self._host = TaskHost(folder)
        self._number = 0
        self._lock = threading.Lock()

    def lives(self) -> bool:
        return True

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        def received(digest: str) -> Iterator[bytes]:
            yield files[digest].read_bytes()

        try:
            return self._host.run(self._number, task, received)
        finally:
            with self._lock:
                self._number += 1

    def stop(self) -> None:
        with self._lock:
            self._host.stop(self._number)

    def close(self) -> None:
        self._host.close()
        self.is_given_back = True


class MachinesHere(OtherMachines):
    """Workers on them. ``names`` are those of the machines in the order in which they are borrowed.

    A name of ``late`` is lent only once its event is set, and one of ``refused`` raises its error instead.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.lent: list[MachineHere] = []
        self.late: dict[str, threading.Event] = {}
        self.refused: dict[str, Exception] = {}
        names = list(names)
        self._folder = folder
        self._places = iter(enumerate(names))
        self._lock = threading.Lock()
        super().__init__(self._lend, len(names))

    def _lend(self) -> MachineHere:
        with self._lock:
            place, name = next(self._places)
        if name in self.late:
            self.late[name].wait(60)
        if name in self.refused:
            raise self.refused[name]
        machine = MachineHere(self._folder / f"place{place}", name)
        self.lent.append(machine)
        return machine
