"""Workers on other machines, whoever lends them: each does one check at a time, and may die at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from biopsy import errors
from biopsy.checks.outcome import Evidence
from biopsy.checks.portable import PortableTask, TaskPacker, renamed, undone, with_our_paths
from biopsy.checks.preparation import PreparedTask
from biopsy.checks.task import Task
from biopsy.checks.task_host import Answer
from biopsy.filesystem.write import write_whole
from biopsy.isolation.errors_as_json import from_json

_Task = TypeVar("_Task")
_Done = TypeVar("_Done")

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


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """What came of a prepared task: its evidence, None if the check was not asked; what its preparation ``told``; and
    ``files``, the bytes of those that came back. ``paths`` has ours for those of the machine.
    """

    evidence: Evidence | None
    told: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[Path, bytes] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def with_our_paths(self, text: str) -> str:
        """A text of the machine with our paths in it."""
        return renamed(text, self.paths)


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
    another, up to three times. ``room`` is how many machines are borrowed at most; further runs wait.
    """

    def __init__(self, borrow: Callable[[], Machine], room: int) -> None:
        self.room = room
        self._borrow = borrow
        self._packer = TaskPacker()
        self._changed = threading.Condition()
        self._free: list[Machine] = []
        self._all: list[Machine] = []
        self._borrowing = 0
        self._held: dict[Future[Any], _Held] = {}
        # Some may still be ending while others begin.
        self._threads = ThreadPoolExecutor(2 * room, "biopsy-machine")

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run, once a machine is free."""
        return self._begun(self._run, task)

    def begin_prepared(self, task: PreparedTask) -> Future[PreparedRun]:
        """Begin a run before which something is made on the machine. Stop and wait for it as for any other."""
        return self._begun(self._run_prepared, task)

    def _begun(self, do: Callable[[_Task, _Held], _Done], task: _Task) -> Future[_Done]:
        for ended in [run for run in self._held if run.done()]:
            del self._held[ended]
        held = _Held()
        run = self._threads.submit(do, task, held)
        self._held[run] = held
        return run

    def stop(self, run: Future[Any]) -> None:
        """Have it never begin, or have its check stopped."""
        held = self._held.get(run)
        if not run.cancel() and held is not None:
            held.stop()

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
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
        found = self._asked(task, held)
        if found is None:
            return _STOPPED
        answer, portable = found
        assert answer.evidence is not None
        return undone(answer.evidence, portable, answer.root)

    def _run_prepared(self, task: PreparedTask, held: _Held) -> PreparedRun:
        found = self._asked(task, held)
        if found is None:
            return PreparedRun(evidence=_STOPPED)
        answer, portable = found
        return PreparedRun(
            evidence=None if answer.evidence is None else undone(answer.evidence, portable, answer.root),
            told=answer.told,
            files={Path(path): content for path, content in answer.files},
            paths={f"{answer.root}/{place}": path for path, place in portable.places},
        )

    def _asked(self, task: Task | PreparedTask, held: _Held) -> tuple[Answer, PortableTask] | None:
        """What a machine answers; None if the run is stopped. Raises what was raised there."""
        portable, files = self._packer.packed(task)
        reason = ""
        for _ in range(MOST_LOST):
            try:
                with self._machine() as machine:
                    if not held.take(machine):
                        return None
                    try:
                        answer = machine.run(portable, files)
                    finally:
                        held.leave()
                _require_no_error(answer, portable)
                return answer, portable
            except MachineLostError as error:
                reason = str(error)
        if held.is_stopped:
            return None
        raise _lost_again_and_again(task, portable, reason)

    @contextmanager
    def _machine(self) -> Iterator[Machine]:
        """A machine for one run; it is given back at once if anything goes wrong there."""
        machine = self._taken()
        try:
            yield machine
        except BaseException:
            with self._changed:
                self._all.remove(machine)
            machine.close()
            with self._changed:
                self._changed.notify()
            raise
        with self._changed:
            self._free.append(machine)
            self._changed.notify()

    def _taken(self) -> Machine:
        """A machine that is free, or one more, once there is room. Raises what ``borrow`` raises."""
        with self._changed:
            while not self._free and len(self._all) + self._borrowing >= self.room:
                self._changed.wait()
            if self._free:
                return self._free.pop()
            self._borrowing += 1
        machine = None
        try:
            machine = self._borrow()
        finally:
            with self._changed:
                self._borrowing -= 1
                self._all += [machine] if machine is not None else []
                self._changed.notify()
        return machine


def _require_no_error(answer: Answer, task: PortableTask) -> None:
    """Raise what was raised there, with our paths in it."""
    if answer.error is None:
        return
    error = from_json(answer.error)
    message = with_our_paths(error.message, task, answer.root)
    raise errors.CheckError(message, kept=error.kept, next_steps=error.next_steps)


def _lost_again_and_again(task: Task | PreparedTask, portable: PortableTask, reason: str) -> errors.CheckError:
    kept, of_what = None, "command"
    if portable.candidate is not None:
        path, of_what = task.candidate.with_name(f"{task.candidate.stem}.lost{task.candidate.suffix}"), "model"
        with suppress(errors.UsageError):
            if portable.model is not None:
                write_whole(path, [portable.model])
                kept = f"the model: {path}"
    return errors.CheckError(
        f"{MOST_LOST} machines in a row were lost while they ran the check on the same {of_what}, so nothing is"
        f" concluded of it: {reason}",
        kept=kept,
        next_steps=["--check-memory SIZE    ends a check that takes too much memory before it ends the machine"],
    )
