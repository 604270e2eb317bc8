"""One run of a check as a task, here or on another machine, and what is prepared before it, such as a build."""

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
from biopsy.checks.command import ARBITER, CommandCheck
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
"""The candidate of a command that has none: a literal ``{}`` in its words stays as it is."""


@dataclass(frozen=True)
class Task:
    """A check and the model to look at: ``parts`` are its bytes, written to ``candidate`` first.

    Without a check nothing is run. ``parts`` is None if the model is there already, or for NO_CANDIDATE. ``original``
    is how the original's outputs differ: if a mismatch is much smaller, the check is run once more to tell whether it
    is only rounding. A task can be pickled if its check can, and then run wherever the folder of ``candidate`` is
    writable.
    """

    check: Check | None
    candidate: Path
    parts: Sequence[bytes] | None = None
    original: tuple[Mismatch, ...] = ()


def run_check(task: Task, stop: Stop | None = None) -> Evidence:
    """Run a task. The check itself limits its time and memory, not the executor.

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
    arbiter = task.check.telling(ARBITER) if is_doubtful and evidence.verdict.rounding is None else None
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
    """Make room for a candidate: remove what an earlier check left there, such as a folder, a pipe or a link.

    A plain file stays, because writing replaces it in one step; ``whole`` removes it too. Raises OSError.
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
    """Give a function that makes a fresh copy of a model file, always at the same place beside it, near its weights.

    A check may change what it is given. Raises UsageError if a copy cannot be written. The copy is removed at the end.
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
    """Runs each function at once, in the calling thread: for checks by a person or by the caller's function."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``function``; the future holds what it returns or raises, but Ctrl-C reaches the caller."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


# Preparations travel with a task and are carried out by the machine. They name files by their paths here; ``TaskSite``
# maps these to paths there.


class Closable(Protocol):
    """Something kept warm until it is closed."""

    def close(self) -> None:
        """End it."""


Kept = TypeVar("Kept", bound=Closable)


@dataclass(frozen=True)
class TaskSite:
    """Where a preparation is carried out. ``path`` maps a path of this machine to the one of the task there."""

    path: Callable[[str], Path]
    warm: dict[Hashable, Any]

    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The object made for this key before, or made now; it is kept warm for later tasks."""
        if key not in self.warm:
            self.warm[key] = make()
        kept: Kept = self.warm[key]
        return kept


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The result of a preparation. ``report`` is sent back: plain values, or records of ours.

    ``words`` replaces words of the check, and ``environment`` changes its variables. Unless ``is_ready``, the
    check is not run, since the preparation has left nothing to check.
    """

    report: Mapping[str, Any]
    words: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    is_ready: bool = True


class Preparation(Protocol):
    """Something to make before a check. A frozen record that can be pickled."""

    def prepared(self, site: TaskSite, stop: Stop) -> AbstractContextManager[Prepared]:
        """Make it and keep it while the check runs. Raises BiopsyError if nothing can be concluded."""


@dataclass(frozen=True, kw_only=True)
class PreparedTask(Task):
    """A task for another machine: a preparation, then a check. Without a check, only the preparation runs.

    ``models`` are sent besides the files of the check, with the weights beside them, and so are other ``files``.
    ``written`` are files that it writes, such as the ``candidate`` if that is not a model. ``back`` are files to bring
    back, if they exist after the check.
    """

    preparation: Preparation
    models: Sequence[Path] = ()
    files: Sequence[Path] = ()
    written: Sequence[Path] = ()
    back: Sequence[Path] = ()


def require_names(check: CommandCheck, model: Path) -> None:
    """Raise UsageError unless the check names the candidate or the model."""
    if not (check.names_candidate or check.names_file(model)):
        raise errors.UsageError(
            "the check names neither the candidate nor the model, whose paths differ on other machines",
            next_steps=["write {} in the check where it goes"],
        )


def require_weights_beside(model: Path, weights: Path | None) -> None:
    """Raise UsageError for a model whose external weights are in another folder: only those beside it are sent."""
    if weights is None or weights.resolve() == model.parent.resolve():
        return
    if files_referred_to(model.read_bytes(), weights):
        raise errors.UsageError(
            f"the weights of {model} are in another folder, but other machines are only sent those beside it",
            next_steps=[f"copy the model to {weights}"],
        )


class EngineFileCheck(Check):
    """Has ``builder`` make ``built`` from each candidate, and runs ``check`` on that.

    A candidate that cannot be built is invalid: that says nothing of precision. One run at a time, as there is one
    file.
    """

    def __init__(self, builder: Check, check: Check, built: Path, *, keep: bool = False) -> None:
        """``keep``: leave the last engine in place."""
        self.builder = builder
        self.check = check
        self._keep = keep
        self._has_built = False
        self.built = built
        self.automatic = check.automatic
        self.stoppable = builder.stoppable and check.stoppable

    @property
    def files(self) -> Sequence[Path]:
        """The files of both."""
        return (*self.builder.files, *self.check.files)

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of both; those of the builder are prefixed."""
        return {**self.check.settings, **{f"builder {name}": text for name, text in self.builder.settings.items()}}

    def start(self) -> None:
        """Warm both up."""
        self.builder.start()
        self.check.start()

    def expect(self, seconds: float) -> None:
        """Pass the duration on to both."""
        self.builder.expect(seconds)
        self.check.expect(seconds)

    def glance(self) -> Check:
        """The same with a check that may stop at the first thing it finds wrong."""
        return EngineFileCheck(self.builder, self.check.glance(), self.built, keep=self._keep)

    def cold(self) -> Check:
        """The same without warm processes."""
        return EngineFileCheck(self.builder.cold(), self.check.cold(), self.built, keep=self._keep)

    def close(self) -> None:
        """End warm processes, and remove the last engine unless it is to be kept."""
        self.builder.close()
        self.check.close()
        if self._has_built and not self._keep:  # otherwise the file is somebody else's
            self.built.unlink(missing_ok=True)
        self._has_built = False

    def line(self, candidate: Path) -> str:
        """Both commands."""
        return f"{self.builder.line(candidate)} && {self.check.line(self.built)}"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Build, then check. Raises CheckError if either cannot be run."""
        started, self._has_built = time.monotonic(), True
        self.built.unlink(missing_ok=True)
        building = self.builder.run(candidate, stop)
        mark_existing_transient(self.built)
        if building.status != 0 or not self.built.exists():
            if building.verdict.outcome == "infrastructure":
                return building
            reason = building.verdict.message or f"exit status {building.status}"
            verdict = VerdictFile(outcome="invalid", message=f"no engine could be built: {reason}")
            return replace(building, status=125, verdict=verdict, timed_out=False, out_of_memory=False)
        return replace(self.check.run(self.built, stop), seconds=time.monotonic() - started)
