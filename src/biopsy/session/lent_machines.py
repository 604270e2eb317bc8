"""Machines that somebody lends: borrowed when they are needed, used by one run after the other, and given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer
from biopsy.session.machine_kind import MachineKind


class MachineLostError(Exception):
    """A machine, or our process on it, has died: that says nothing of the model."""


class Machine(Protocol):
    """One place for one check on another machine. ``name`` is that of the machine: it may have several places.

    ``kind`` is what answers depend on there.
    """

    @property
    def name(self) -> str:
        """The same for each place that it has."""

    @property
    def kind(self) -> MachineKind:
        """The same for all machines that are one engine."""

    def lives(self) -> bool:
        """Whether it still answers."""

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Do a task and wait for its end; ``files`` has the file of each digest. Raises MachineLostError."""

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs, with all that it has started. From any thread."""

    def close(self) -> None:
        """Give it back, with all that runs there."""


class LentMachines:
    """Machines that ``borrow`` lends, at most so many as there is ``room`` for.

    Runs wait for whichever is free first, be it one that was borrowed for another run; one that is stopped waits no
    more, once ``wake`` was called.
    """

    def __init__(self, borrow: Callable[[], Machine], room: int) -> None:
        self._borrow = borrow
        self._room = room
        self._changed = threading.Condition()
        self._free: list[Machine] = []
        self._all: list[Machine] = []
        self._refused: list[BaseException] = []
        self._borrowing = 0
        self._waiting = 0
        self._borrowers = ThreadPoolExecutor(room, "biopsy-borrow")

    @property
    def names(self) -> frozenset[str]:
        """The names of the machines that are borrowed now."""
        with self._changed:
            return frozenset(machine.name for machine in self._all)

    def expect(self, runs: int) -> None:
        """Borrow machines for so many runs, which will soon begin: some take seconds to get ready."""
        with self._changed:
            self._borrow_for(runs - len(self._free))

    def wake(self) -> None:
        """Have all who wait look whether they still want a machine."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Give the machines back, once nobody uses them any more."""
        self._borrowers.shutdown(wait=True, cancel_futures=True)
        given_back, self._all, self._free = self._all, [], []
        with ThreadPoolExecutor(self._room) as threads:
            for end in [threads.submit(machine.close) for machine in given_back]:
                end.result()

    @contextmanager
    def one(self, is_stopped: Callable[[], bool]) -> Iterator[Machine | None]:
        """A machine for one run; it is given back at once if anything goes wrong there. None if the run is stopped.

        Raises what ``borrow`` raises.
        """
        machine = self._taken(is_stopped)
        if machine is None:
            yield None
            return
        try:
            yield machine
        except BaseException:
            with self._changed:
                self._all.remove(machine)
            machine.close()
            with self._changed:
                self._changed.notify_all()
            raise
        with self._changed:
            self._free.append(machine)
            self._changed.notify_all()

    def _taken(self, is_stopped: Callable[[], bool]) -> Machine | None:
        """A machine that is free, or one more, once there is room."""
        with self._changed:
            self._waiting += 1
            try:
                while not is_stopped():
                    if self._free:
                        return self._free.pop()
                    if self._refused:
                        raise self._refused.pop()
                    self._borrow_for(self._waiting)
                    self._changed.wait()
                return None
            finally:
                self._waiting -= 1
                if not self._waiting:
                    self._refused.clear()  # who comes later asks anew

    def _borrow_for(self, runs: int) -> None:
        """Begin to borrow as many machines as so many runs need that have none, as far as there is room."""
        room = self._room - len(self._all) - self._borrowing
        for _ in range(min(room, runs - self._borrowing)):
            self._borrowing += 1
            self._borrowers.submit(self._borrow_one)

    def _borrow_one(self) -> None:
        """Have one more machine, or an error in its place: whoever waits for a machine is told of it."""
        refused: list[BaseException] = []
        machines: list[Machine] = []
        try:
            machines.append(self._borrow())
        except BaseException as error:
            refused.append(error)
        with self._changed:
            self._borrowing -= 1
            self._all += machines
            self._free += machines
            self._refused += refused if self._waiting else ()
            self._changed.notify_all()
