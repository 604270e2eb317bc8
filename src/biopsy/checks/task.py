"""One run of a check as a task for an executor, here or on another machine; and what is made before it: an
environment, a build of the model, an engine to be looked at.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import status_text
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch, Rounding, size_beside
from biopsy.model.external import files_referred_to
from biopsy.processes import cleanup
from biopsy.processes.cleanup import mark_existing_transient
from biopsy.processes.watch import Stop
from biopsy.processes.writing import cannot_write, copy_transient, write_whole

NO_CANDIDATE = Path("{}")
"""Given as the candidate of a command that has none, this leaves a literal ``{}`` in its words as it is."""


@dataclass(frozen=True)
class Task:
    """A check, and the model it is to look at: ``parts`` are its bytes, written to ``candidate`` before.

    Without a check nothing is asked. There are no parts for what stands there already, or for NO_CANDIDATE.
    ``original`` is what differs in the original: where a mismatch is much smaller, the check is run once more, to tell
    whether it is only rounding. It can be pickled if the check can, and then run anywhere where the folder of
    ``candidate`` can be written.
    """

    check: Check | None
    candidate: Path
    parts: Sequence[bytes] | None = None
    original: tuple[Mismatch, ...] = ()


def run_check(task: Task, stop: Stop | None = None) -> Evidence:
    """Do a task. Time and memory are bounded here, by the check, and not by who runs it.

    Raises CheckError if the candidate cannot be written or the check cannot be run.
    """
    if task.parts is not None:
        try:
            clear(task.candidate)
            write_whole(task.candidate, task.parts, transient=True)
        except errors.UsageError as error:
            raise errors.CheckError(error.message, next_steps=error.next_steps) from error
        except OSError as error:
            raise errors.CheckError(f"cannot write {task.candidate}: {error.strerror or error}") from error
    assert task.check is not None
    evidence = task.check.run(task.candidate, stop)
    is_doubtful = size_beside(evidence.verdict.mismatches, task.original) == "doubtful"
    arbiter = task.check.arbiter() if is_doubtful and evidence.verdict.rounding is None else None
    if arbiter is None:
        return evidence
    second = arbiter.run(task.candidate, stop)
    rounding = second.verdict.rounding
    if rounding is None:
        what = f"has ended with {status_text(second.status)}"
        if second.timed_out:
            what = f"has not ended after {second.seconds:.0f} s"
        elif second.out_of_memory:
            what = "needs more memory than --check-memory allows"
        rounding = Rounding("unknown", reason=f"the run in float64 {what}")
    verdict = replace(evidence.verdict, rounding=rounding)
    return replace(evidence, verdict=verdict, seconds=evidence.seconds + second.seconds)


def clear(candidate: Path, *, whole: bool = False) -> None:
    """Make room for a candidate: remove what an earlier check has put there, such as a folder, a pipe or a link.

    A plain file stays, for it is replaced in one step, unless the ``whole`` place is to be left empty. Raises OSError.
    """
    try:
        mode = os.lstat(candidate).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(candidate)
    elif whole or not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        candidate.unlink(missing_ok=True)


@contextlib.contextmanager
def copies(output: Path) -> Iterator[Callable[[], Path]]:
    """Fresh copies of a model file, one after the other, each at the same place beside it: so it finds its weights.

    A check may change what it is given. Raises UsageError where a copy cannot be written; nothing is left behind.
    """
    copy = output.with_name(f".{output.stem}.{os.urandom(4).hex()}{output.suffix}")

    def fresh() -> Path:
        try:
            clear(copy)
        except OSError as error:
            raise cannot_write(copy, error) from error
        copy_transient(output, copy)
        return copy

    try:
        yield fresh
    finally:
        with contextlib.suppress(OSError):
            clear(copy, whole=True)
        cleanup.keep(copy)


class Inline(Executor):
    """Runs each function at once, in the thread that submits it: for checks by a person or by a caller's function."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``function``; what it returns or raises is in the future. Ctrl-C is not: it ends whoever asks."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


# What a machine makes before a check looks at a model there: a build of the model, an environment for the check.
#
# A ``Preparation`` travels with a task, and is carried out by the machine. It names files as they are named here; the
# ``TaskSite`` tells where they stand there.


class Closable(Protocol):
    """What is kept warm, and ended at the end."""

    def close(self) -> None:
        """End it."""


Kept = TypeVar("Kept", bound=Closable)


@dataclass(frozen=True)
class TaskSite:
    """Where a preparation is carried out. ``path`` tells where a file of the task stands that is called so here."""

    path: Callable[[str], Path]
    warm: dict[Hashable, Any]

    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made for a key before, or now; it is kept warm for the tasks that follow."""
        if key not in self.warm:
            self.warm[key] = make()
        kept: Kept = self.warm[key]
        return kept


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What was made. ``told`` is brought back: plain values, or records of ours.

    ``words`` stand in those of the check in place of others, and ``environment`` changes its variables. Unless it
    ``is_ready``, there is nothing that the check could look at, and it does not.
    """

    told: Mapping[str, Any]
    words: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    is_ready: bool = True


class Preparation(Protocol):
    """Something to make. It is a frozen record, and can be pickled."""

    def prepared(self, site: TaskSite, stop: Stop) -> AbstractContextManager[Prepared]:
        """Make it, and have it stand while the check looks. Raises BiopsyError if nothing can be concluded."""


@dataclass(frozen=True, kw_only=True)
class PreparedTask(Task):
    """A task for another machine, before which something is made there; None as a check: only this is made.

    ``models`` are sent besides the files of the check, with the weights beside them. ``written`` are files that it
    writes, such as the ``candidate`` if it is no model. ``back`` are files that come back, if they are there after the
    check. ``original`` is as in ``Task``.
    """

    preparation: Preparation
    models: Sequence[Path] = ()
    written: Sequence[Path] = ()
    back: Sequence[Path] = ()


def require_names(check: CommandCheck, model: Path) -> None:
    """Raise UsageError for a check that names neither the candidate nor the model, wherever they stand."""
    if not (check.names_candidate or check.names_file(model)):
        raise errors.UsageError(
            "the check names neither the candidate nor the model, which stand elsewhere on other machines",
            next_steps=["write {} in the check where it goes"],
        )


def require_weights_beside(model: Path, weights: Path | None) -> None:
    """Raise UsageError for a model whose external weights are in another folder: those beside it are sent."""
    if weights is None or weights.resolve() == model.parent.resolve():
        return
    if files_referred_to(model.read_bytes(), weights):
        raise errors.UsageError(
            f"the weights of {model} stand in another folder, and other machines are sent those that stand beside it",
            next_steps=[f"copy the model to {weights}"],
        )


class EngineFileCheck(Check):
    """Has ``builder`` make ``built`` of each candidate, and asks ``check`` about that.

    What cannot be built says nothing of precision: the candidate is invalid. One at a time, for there is one file.
    """

    def __init__(self, builder: Check, check: Check, built: Path, *, keep: bool = False) -> None:
        """``keep``: the last engine is left there."""
        self.builder = builder
        self.check = check
        self._keep = keep
        self._made = False
        self.built = built
        self.automatic = check.automatic
        self.stoppable = builder.stoppable and check.stoppable

    @property
    def files(self) -> Sequence[Path]:
        """Those of both."""
        return (*self.builder.files, *self.check.files)

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of the builder, and those of the check under names of their own."""
        return {**self.check.settings, **{f"builder {name}": text for name, text in self.builder.settings.items()}}

    def start(self) -> None:
        """Warm both up."""
        self.builder.start()
        self.check.start()

    def expect(self, seconds: float) -> None:
        """Pass it on to both."""
        self.builder.expect(seconds)
        self.check.expect(seconds)

    def glance(self) -> Check:
        """The same, with a check that may be content with the first thing that it finds wrong."""
        return EngineFileCheck(self.builder, self.check.glance(), self.built, keep=self._keep)

    def cold(self) -> Check:
        """The same without anything that was kept warm."""
        return EngineFileCheck(self.builder.cold(), self.check.cold(), self.built, keep=self._keep)

    def close(self) -> None:
        """End what was kept warm, and remove the last engine unless it is to be kept."""
        self.builder.close()
        self.check.close()
        if self._made and not self._keep:  # what stands there otherwise is somebody else's
            self.built.unlink(missing_ok=True)
        self._made = False

    def line(self, candidate: Path) -> str:
        """Both commands."""
        return f"{self.builder.line(candidate)} && {self.check.line(self.built)}"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Build, then ask. Raises CheckError if either cannot be run."""
        started, self._made = time.monotonic(), True
        self.built.unlink(missing_ok=True)
        building = self.builder.run(candidate, stop)
        mark_existing_transient(self.built)
        if building.status != 0 or not self.built.exists():
            if building.verdict.outcome == "infrastructure":
                return building
            said = building.verdict.message or f"exit status {building.status}"
            verdict = VerdictFile(outcome="invalid", message=f"no engine could be built: {said}")
            return replace(building, status=125, verdict=verdict, timed_out=False, out_of_memory=False)
        return replace(self.check.run(self.built, stop), seconds=time.monotonic() - started)
