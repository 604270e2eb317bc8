"""One run of a check as a task that can be handed to an executor, here or on another machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.signature import status_text
from biopsy.comparison.mismatch import Mismatch, Rounding, size_beside
from biopsy.filesystem.write import cannot_write, copy_transient, write_transient
from biopsy.isolation import cleanup
from biopsy.isolation.watch import Stop

NO_CANDIDATE = Path("{}")
"""Given as the candidate of a command that has none, this leaves a literal ``{}`` in its words as it is."""


@dataclass(frozen=True)
class Task:
    """A check, and the model it is to look at: ``parts`` are its bytes, written to ``candidate`` before.

    None for what stands there already, or for NO_CANDIDATE. ``original`` is what differs in the original: where a
    mismatch is much smaller, the check is run once more, to tell whether it is only rounding. It can be pickled if the
    check can, and then run anywhere where the folder of ``candidate`` can be written.
    """

    check: Check
    candidate: Path
    parts: Sequence[bytes] | None
    original: tuple[Mismatch, ...] = ()


def run_check(task: Task, stop: Stop | None = None) -> Evidence:
    """Do a task. Time and memory are bounded here, by the check, and not by who runs it.

    Raises CheckError if the candidate cannot be written or the check cannot be run.
    """
    if task.parts is not None:
        try:
            clear(task.candidate)
            write_transient(task.candidate, task.parts)
        except errors.UsageError as error:
            raise errors.CheckError(error.message, next_steps=error.next_steps) from error
        except OSError as error:
            raise errors.CheckError(f"cannot write {task.candidate}: {error.strerror or error}") from error
    evidence = task.check.run(task.candidate, stop)
    in_doubt = size_beside(evidence.verdict.mismatches, task.original) == "doubtful"
    return _arbitrated(task, evidence, stop) if in_doubt else evidence


def _arbitrated(task: Task, evidence: Evidence, stop: Stop | None) -> Evidence:
    """The evidence, with what float64 says of its mismatch, if the check can be asked. The first run has the word."""
    arbiter = task.check.arbiter()
    if arbiter is None or evidence.verdict.rounding is not None:
        return evidence
    second = arbiter.run(task.candidate, stop)
    rounding = second.verdict.rounding or Rounding("unknown", reason=_no_answer(second))
    verdict = replace(evidence.verdict, rounding=rounding)
    return replace(evidence, verdict=verdict, seconds=evidence.seconds + second.seconds)


def _no_answer(second: Evidence) -> str:
    if second.timed_out:
        return f"the run in float64 has not ended after {second.seconds:.0f} s"
    if second.out_of_memory:
        return "the run in float64 needs more memory than --check-memory allows"
    return f"the run in float64 has ended with {status_text(second.status)}"


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
    """Runs what it is given at once, in the thread of who asks: for a person, and for functions of a caller."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``function``; what it returns or raises is in the future. Ctrl-C is not: it ends whoever asks."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
