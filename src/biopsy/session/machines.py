"""Workers on other machines, whoever lends them: each does one check at a time, and may die at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from biopsy import errors
from biopsy.checks.outcome import Evidence
from biopsy.checks.portable import PortableTask, TaskPacker, undone, with_our_paths
from biopsy.checks.task import Task
from biopsy.checks.task_host import Answer
from biopsy.filesystem.write import write_whole
from biopsy.isolation.errors_as_json import from_json

MOST_LOST = 3
"""Machines that may die one after the other under the same check, before it is said to kill them."""

_STOPPED = Evidence(status=-15)
"""Of a run that nobody waits for any more."""


class MachineLostError(Exception):
    """A machine, or our process on it, has died: that says nothing of the model."""


class Machine(Protocol):
    """One place for one check on another machine."""

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Do a task and wait for its end; ``files`` has the file of each digest. Raises MachineLostError."""

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs, with all that it has started. From any thread."""

    def close(self) -> None:
        """Give it back, with all that runs there."""


@dataclass(eq=False)
class _Held:
    """The machine that does a run now, and whether anybody still waits for the run."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    machine: Machine | None = None
    is_stopped: bool = False

    def take(self, machine: Machine) -> bool:
        """Let a machine do it, unless it is stopped."""
        with self.lock:
            self.machine = None if self.is_stopped else machine
            return not self.is_stopped

    def leave(self) -> None:
        with self.lock:
            self.machine = None

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            if self.machine is not None:
                self.machine.stop()


class OtherMachines:
    """Workers that run each check on a machine that ``borrow`` lends; see ``session.workers.Workers``.

    A machine is borrowed when no other is free, and given back at the end. If one dies, the check is asked again on
    another, up to three times. ``room`` is how many checks should run at once.
    """

    def __init__(self, borrow: Callable[[], Machine], room: int) -> None:
        self.room = room
        self._borrow = borrow
        self._packer = TaskPacker()
        self._lock = threading.Lock()
        self._free: list[Machine] = []
        self._all: list[Machine] = []
        self._held: dict[Future[Evidence], _Held] = {}
        # Some may still be ending while others begin.
        self._threads = ThreadPoolExecutor(2 * room, "biopsy-machine")

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run, once a machine is free."""
        for ended in [run for run in self._held if run.done()]:
            del self._held[ended]
        held = _Held()
        run = self._threads.submit(self._run, task, held)
        self._held[run] = held
        return run

    def stop(self, run: Future[Evidence]) -> None:
        """Have it never begin, or have its check stopped."""
        held = self._held.get(run)
        if not run.cancel() and held is not None:
            held.stop()

    def wait(self, runs: Collection[Future[Evidence]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop what runs, wait until it has ended, and give the machines back."""
        for run in list(self._held):
            self.stop(run)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for machine in self._all:
            machine.close()
        self._all, self._free = [], []

    def _run(self, task: Task, held: _Held) -> Evidence:
        portable, files = self._packer.packed(task)
        reason = ""
        for _ in range(MOST_LOST):
            machine = self._taken()
            try:
                if not held.take(machine):
                    self._give(machine)
                    return _STOPPED
                answer = machine.run(portable, files)
            except MachineLostError as error:
                reason = str(error)
                held.leave()
                self._lose(machine)
                continue
            except BaseException:
                held.leave()
                self._lose(machine)
                raise
            held.leave()
            self._give(machine)
            return _evidence(answer, portable)
        if held.is_stopped:
            return _STOPPED
        raise _lost_again_and_again(task, portable, reason)

    def _taken(self) -> Machine:
        with self._lock:
            if self._free:
                return self._free.pop()
        machine = self._borrow()
        with self._lock:
            self._all.append(machine)
        return machine

    def _give(self, machine: Machine) -> None:
        with self._lock:
            self._free.append(machine)

    def _lose(self, machine: Machine) -> None:
        with self._lock:
            self._all.remove(machine)
        machine.close()


def _evidence(answer: Answer, task: PortableTask) -> Evidence:
    """What a check has left, with our paths in it. Raises what it raised there."""
    if answer.evidence is not None:
        return undone(answer.evidence, task, answer.root)
    assert answer.error is not None
    error = from_json(answer.error)
    message = with_our_paths(error.message, task, answer.root)
    raise errors.CheckError(message, kept=error.kept, next_steps=error.next_steps)


def _lost_again_and_again(task: Task, portable: PortableTask, reason: str) -> errors.CheckError:
    kept = task.candidate.with_name(f"{task.candidate.stem}.lost{task.candidate.suffix}")
    is_kept = False
    with suppress(errors.UsageError):
        write_whole(kept, [portable.model])
        is_kept = True
    return errors.CheckError(
        f"{MOST_LOST} machines in a row were lost while they ran the check on the same model, so nothing is concluded"
        f" of it: {reason}",
        kept=f"the model: {kept}" if is_kept else None,
        next_steps=["--check-memory SIZE    ends a check that takes too much memory before it ends the machine"],
    )
