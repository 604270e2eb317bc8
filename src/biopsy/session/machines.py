"""Workers on other machines, which are borrowed when needed and may be lost at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from biopsy import errors, events
from biopsy.checks.outcome import Evidence
from biopsy.checks.portable import PortableTask, TaskPacker, as_if_here, our_paths, renamed
from biopsy.checks.task import PreparedTask, Task
from biopsy.checks.task_host import Answer
from biopsy.processes.server import from_json
from biopsy.processes.writing import write_whole
from biopsy.session.conditions import MachineKind, differing, this_machine, unlike_this_one


class MachineLostError(Exception):
    """A machine, or our process on it, has died, which says nothing about the model."""


class Machine(Protocol):
    """A place for one check at a time on another machine, which may have several.

    ``name`` is that of the machine, ``kind`` is what answers depend on there.
    """

    name: str
    kind: MachineKind

    def lives(self) -> bool:
        """Whether it still answers."""

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Run a task and wait for its end; ``files`` has the file for each digest. Raises MachineLostError."""

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs, with all that it has started. From any thread."""

    def close(self) -> None:
        """Give the machine back, ending all that runs there."""


class LentMachines:
    """Machines that ``borrow`` lends, at most ``room`` of them.

    A run takes the machine that is free first, even if it was borrowed for another run. A run that is stopped gives up
    waiting after a call of ``wake``.
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
    def count(self) -> int:
        """How many machines are borrowed now, by name."""
        with self._changed:
            return len({machine.name for machine in self._all})

    def expect(self, runs: int) -> None:
        """Borrow machines for this many runs, which will soon begin; some take seconds to get ready."""
        with self._changed:
            self._borrow_for(runs - len(self._free))

    def wake(self) -> None:
        """Let all waiting runs check whether they are stopped."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Give the machines back. Nobody may use them any more."""
        self._borrowers.shutdown(wait=True, cancel_futures=True)
        given_back, self._all, self._free = self._all, [], []
        with ThreadPoolExecutor(self._room) as threads:
            for end in [threads.submit(machine.close) for machine in given_back]:
                end.result()

    @contextmanager
    def lend(self, is_stopped: Callable[[], bool]) -> Iterator[Machine | None]:
        """Lend a machine for one run; it is given back at once if anything fails there. None if the run is stopped.

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
        """Take a free machine, or a new one, once there is room."""
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
                    self._refused.clear()  # later runs borrow anew

    def _borrow_for(self, runs: int) -> None:
        """Begin to borrow machines for this many runs that have none, as far as there is room."""
        room = self._room - len(self._all) - self._borrowing
        for _ in range(min(room, runs - self._borrowing)):
            self._borrowing += 1
            self._borrowers.submit(self._borrow_one)

    def _borrow_one(self) -> None:
        """Borrow one more machine; if that fails, a waiting run raises the error."""
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


_Done = TypeVar("_Done")

MOST_LOST = 3
"""Machines that may be lost in a row under the same check before the check is blamed."""

_STOPPED = Evidence(status=-15)
"""The evidence of a stopped run."""


class _LostInRunError(MachineLostError):
    """A machine was lost while it ran a check, which may be the cause."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """The result of a task on another machine: its evidence, None if the check was not run; the ``report`` of a
    preparation; and ``files``, the bytes of those brought back. ``paths`` maps the machine's paths to ours.
    """

    evidence: Evidence | None
    report: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[Path, bytes] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def with_our_paths(self, text: str) -> str:
        """A text from the machine with our paths in it."""
        return renamed(text, self.paths)


@dataclass(eq=False)
class _Held:
    """The machine of a run, and whether the run is stopped."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    machine: Machine | None = None
    is_stopped: bool = False

    @contextmanager
    def by(self, machine: Machine | None) -> Iterator[bool]:
        """Assign a machine while the run is on it; gives False if the run is stopped and must not begin."""
        with self.lock:
            is_wanted = not self.is_stopped
            self.machine = machine if is_wanted else None
        try:
            yield is_wanted
        finally:
            with self.lock:
                self.machine = None

    def stop(self) -> None:
        with self.lock:
            self.is_stopped = True
            if self.machine is not None:
                self.machine.stop()


class OtherMachines:
    """Workers that run each check on a machine that ``borrow`` lends; see ``session.pool.Workers``.

    A machine is borrowed if none is free, up to ``room`` of them, and given back at the end. If one is lost, the check
    is run on another, up to three times; ``lost`` counts lost machines.

    ``kinds`` are the known kinds of the machines, by default that of this one. A remark reports a later machine of
    another kind, and no journal keeps its answers.
    """

    def __init__(self, borrow: Callable[[], Machine], room: int, kinds: Sequence[MachineKind] = ()) -> None:
        self.room = room
        self.kinds = tuple(kinds) or (this_machine(),)
        self.lost = 0
        self._reported: list[MachineKind] = []
        self._machines = LentMachines(borrow, room)
        self._packer = TaskPacker()
        self._lock = threading.Lock()
        self._held: dict[Future[Any], _Held] = {}
        # Some runs may still be ending while others begin.
        self._threads = ThreadPoolExecutor(2 * room, "biopsy-machine")

    def expect(self, runs: int) -> None:
        """Borrow machines for this many runs, which will soon begin; some take seconds to get ready."""
        self._machines.expect(runs)

    def jobs(self, wanted: int | None) -> int:
        """How many runs go on at once: as many as are wanted, by default and at most as many as have room."""
        return min(wanted or self.room, self.room)

    @property
    def running(self) -> int:
        """How many checks run on machines now, without stopped ones."""
        return sum(held.machine is not None and not held.is_stopped for held in self._held.values())

    @property
    def borrowed(self) -> int:
        """How many machines are borrowed now."""
        return self._machines.count

    @property
    def remarks(self) -> Sequence[str]:
        """What the user should know about the machines before a search begins."""
        return [text for text in (differing(self.kinds), unlike_this_one(self.kinds)) if text]

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run, once a machine is free."""

        def run(held: _Held) -> Evidence:
            evidence = self._run(task, held).evidence
            assert evidence is not None
            return evidence

        return self._begun(run)

    def begin_prepared(self, task: PreparedTask) -> Future[PreparedRun]:
        """Begin a run with a preparation on the machine. Stop and wait for it like any other."""
        return self._begun(lambda held: self._run(task, held))

    def _begun(self, do: Callable[[_Held], _Done]) -> Future[_Done]:
        for ended in [run for run in self._held if run.done()]:
            del self._held[ended]
        held = _Held()
        run = self._threads.submit(do, held)
        self._held[run] = held
        return run

    def stop(self, run: Future[Any]) -> None:
        """Keep a run from beginning, or stop its check."""
        held = self._held.get(run)
        if not run.cancel() and held is not None:
            held.stop()
            self._machines.wake()

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop all runs, wait for their end, and give the machines back."""
        for run in list(self._held):
            self.stop(run)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._machines.close()

    def _run(self, task: Task, held: _Held) -> PreparedRun:
        """Run a task on a machine, and on another one if that is lost. Raises what was raised there."""
        portable, files = self._packer.packed(task)
        lost: list[str] = []
        gone, reason = 0, ""
        while not held.is_stopped and len(lost) < MOST_LOST and gone <= self.room:
            try:
                with self._machines.lend(lambda: held.is_stopped) as machine, held.by(machine) as is_wanted:
                    if machine is None or not is_wanted:
                        continue
                    answer = self._answer(machine, portable, files)
                if answer.is_stopped:
                    continue  # perhaps that was meant for the previous run, which had just ended
                paths = our_paths(portable, answer.root)
                if answer.error is not None:
                    error = from_json(answer.error)
                    message = renamed(error.message, paths)
                    raise errors.CheckError(message, kept=error.kept, next_steps=error.next_steps)
                evidence = answer.evidence
                if evidence is not None:
                    evidence = self._with_machine(as_if_here(evidence, paths), machine.kind, lost)
                back = {Path(path): content for path, content in answer.files}
                return PreparedRun(evidence=evidence, report=answer.report, files=back, paths=paths)
            except _LostInRunError as error:
                lost.append(str(error))
            except MachineLostError as error:
                gone, reason = gone + 1, str(error)
        if held.is_stopped:
            return PreparedRun(evidence=_STOPPED)
        if len(lost) < MOST_LOST:
            raise errors.CheckError(f"the other machines are lost before they run a check: {reason}")
        raise _lost_again_and_again(task, portable, lost[-1])

    def _answer(self, machine: Machine, portable: PortableTask, files: Mapping[str, Path]) -> Answer:
        """The answer of a machine. Raises _LostInRunError, or MachineLostError if the machine was lost before."""
        if not machine.lives():
            raise MachineLostError(f"{machine.kind.machine}: it was lost while no check ran there")
        try:
            return machine.run(portable, files)
        except MachineLostError as error:
            with self._lock:
                self.lost += 1
            raise _LostInRunError(f"{machine.kind.machine}: {error}") from error

    def _with_machine(self, evidence: Evidence, kind: MachineKind, lost: Sequence[str]) -> Evidence:
        """The evidence with its machine, and remarks on a machine of a new kind and on those ``lost``."""
        remarks = [evidence.remark] if evidence.remark else []
        remarks += [f"a machine was lost, so its check was asked again: {reason}" for reason in lost]
        is_known = any(kind.facts == known.facts for known in self.kinds)
        with self._lock:
            is_news = not is_known and all(kind.facts != reported.facts for reported in self._reported)
            self._reported += [kind] if is_news else []
        if is_news:
            words = self.kinds[0].differences(kind)
            remarks.append(
                f"{kind.machine} came later and is of another kind, so no journal keeps its answers ({words})"
            )
        return replace(evidence, machine=str(kind), may_be_kept=is_known, remark="; ".join(remarks))


def tell_of_machines(executor: object, listener: events.Listener) -> None:
    """Report what the user should know about other machines before they run checks; nothing if there are none."""
    for text in executor.remarks if isinstance(executor, OtherMachines) else ():
        listener(events.Remark(text))


def _lost_again_and_again(task: Task, portable: PortableTask, reason: str) -> errors.CheckError:
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
