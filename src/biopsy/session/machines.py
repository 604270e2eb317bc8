"""Workers on other machines: lent by somebody, borrowed when they are needed, and each may die at any moment."""

from __future__ import annotations

import threading
from collections import Counter
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
    """A machine, or our process on it, has died: that says nothing of the model."""


class Machine(Protocol):
    """One place for one check on another machine, which may have several.

    ``name`` is that of the machine, ``kind`` is what answers depend on there: the same for all that are one engine.
    """

    name: str
    kind: MachineKind

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


# Workers on other machines, whoever lends them: each does one check at a time, and may die at any moment.

_Task = TypeVar("_Task")
_Done = TypeVar("_Done")

MOST_LOST = 3
"""Machines that may die one after the other under the same check, before it is said to kill them."""

_STOPPED = Evidence(status=-15)
"""Of a run that nobody waits for any more."""


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """What other machines are at: how many have places for checks, and how many checks run there that are wanted."""

    machines: int
    running: int


class _LostInRunError(MachineLostError):
    """It was lost while it ran a check, which may be why."""


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

    @contextmanager
    def by(self, machine: Machine) -> Iterator[bool]:
        """Let a machine do it meanwhile; False if it is stopped, and not to begin."""
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

    A machine is borrowed when no other is free, and given back at the end. If one dies, the check is asked again on
    another, up to three times; ``lost`` counts them. ``room`` is how many machines are borrowed at most. ``received``
    counts the bytes of files that were sent to each machine, by its name.

    ``kinds`` are those that the machines are known to be of, by default that of this one. A machine of a kind
    that comes later is told, and what it says is kept in no journal.
    """

    def __init__(self, borrow: Callable[[], Machine], room: int, kinds: Sequence[MachineKind] = ()) -> None:
        self.room = room
        self.kinds = tuple(kinds) or (this_machine(),)
        self.lost = 0
        self.received: Counter[str] = Counter()
        self._told: list[MachineKind] = []
        self._lent = LentMachines(borrow, room)
        self._packer = TaskPacker()
        self._lock = threading.Lock()
        self._held: dict[Future[Any], _Held] = {}
        # Some may still be ending while others begin.
        self._threads = ThreadPoolExecutor(2 * room, "biopsy-machine")

    def expect(self, runs: int) -> None:
        """Borrow machines for so many runs, which will soon begin: some take seconds to get ready."""
        self._lent.expect(runs)

    @property
    def use(self) -> MachineUse:
        """What the machines are at now."""
        running = sum(held.machine is not None and not held.is_stopped for held in self._held.values())
        return MachineUse(machines=len(self._lent.names), running=running)

    @property
    def remarks(self) -> Sequence[str]:
        """What a person should know of the machines before a search begins."""
        return [text for text in (differing(self.kinds), unlike_this_one(self.kinds)) if text]

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
            self._lent.wake()

    def wait(self, runs: Collection[Future[Any]], seconds: float | None) -> None:
        """Wait until one has ended."""
        wait(runs, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop what runs, wait until it has ended, and give the machines back."""
        for run in list(self._held):
            self.stop(run)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._lent.close()

    def _run(self, task: Task, held: _Held) -> Evidence:
        found = self._asked(task, held)
        if found is None:
            return _STOPPED
        assert found[0].evidence is not None
        return found[0].evidence

    def _run_prepared(self, task: PreparedTask, held: _Held) -> PreparedRun:
        found = self._asked(task, held)
        if found is None:
            return PreparedRun(evidence=_STOPPED)
        answer, portable = found
        return PreparedRun(
            evidence=answer.evidence,
            told=answer.told,
            files={Path(path): content for path, content in answer.files},
            paths=our_paths(portable, answer.root),
        )

    def _asked(self, task: Task, held: _Held) -> tuple[Answer, PortableTask] | None:
        """What a machine answers; None if the run is stopped. Raises what was raised there."""
        portable, files = self._packer.packed(task)
        lost: list[str] = []
        gone, reason = 0, ""
        while not held.is_stopped and len(lost) < MOST_LOST and gone <= self.room:
            try:
                with self._lent.one(lambda: held.is_stopped) as machine:
                    if machine is None:
                        return None
                    with held.by(machine) as is_wanted:
                        if not is_wanted:
                            return None
                        answer = self._answer(machine, portable, files)
                if answer.is_stopped:
                    continue  # perhaps it was meant for the run before, which had just ended
                _require_no_error(answer, portable)
                if answer.evidence is None:
                    return answer, portable
                evidence = as_if_here(answer.evidence, our_paths(portable, answer.root))
                return replace(answer, evidence=self._with_machine(evidence, machine.kind, lost)), portable
            except _LostInRunError as error:
                lost.append(str(error))
            except MachineLostError as error:
                gone, reason = gone + 1, str(error)
        if held.is_stopped:
            return None
        if len(lost) < MOST_LOST:
            raise errors.CheckError(f"the other machines are lost before they run a check: {reason}")
        raise _lost_again_and_again(task, portable, lost[-1])

    def _answer(self, machine: Machine, portable: PortableTask, files: Mapping[str, Path]) -> Answer:
        """What a task has come to. Raises _LostInRunError, or MachineLostError if the machine was lost before."""
        if not machine.lives():
            raise MachineLostError(f"{machine.kind.machine}: it was lost while no check ran there")
        try:
            answer = machine.run(portable, files)
        except MachineLostError as error:
            with self._lock:
                self.lost += 1
            raise _LostInRunError(f"{machine.kind.machine}: {error}") from error
        with self._lock:
            self.received[machine.name] += answer.received
        return answer

    def _with_machine(self, evidence: Evidence, kind: MachineKind, lost: Sequence[str]) -> Evidence:
        """What a check has left, with the machine it ran on, and what is to be told of that one and those ``lost``."""
        remarks = [evidence.remark] if evidence.remark else []
        remarks += [f"a machine was lost, so its check was asked again: {reason}" for reason in lost]
        is_known = any(kind.facts == known.facts for known in self.kinds)
        with self._lock:
            is_news = not is_known and all(kind.facts != told.facts for told in self._told)
            self._told += [kind] if is_news else []
        if is_news:
            words = self.kinds[0].differences(kind)
            remarks.append(
                f"{kind.machine} came later and is of another kind, so no journal keeps its answers ({words})"
            )
        return replace(evidence, machine=str(kind), may_be_kept=is_known, remark="; ".join(remarks))


def tell_of_machines(executor: object, listener: events.Listener) -> None:
    """Tell what a person should know of other machines before they run checks; nothing if this one runs them."""
    for text in executor.remarks if isinstance(executor, OtherMachines) else ():
        listener(events.Remark(text))


def kinds_of(executor: object) -> Sequence[MachineKind]:
    """The kinds of the machines that run checks for a search; none if this one does, as far as anybody can tell."""
    return executor.kinds if isinstance(executor, OtherMachines) else ()


def _require_no_error(answer: Answer, task: PortableTask) -> None:
    """Raise what was raised there, with our paths in it."""
    if answer.error is None:
        return
    error = from_json(answer.error)
    message = renamed(error.message, our_paths(task, answer.root))
    raise errors.CheckError(message, kept=error.kept, next_steps=error.next_steps)


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
