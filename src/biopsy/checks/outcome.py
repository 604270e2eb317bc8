"""What a check is, its outcomes, and the evidence of a run; and the simplest checks: a Python function and a person."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from biopsy import errors, events
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.verdict import of_error as verdict_of_error
from biopsy.model.known_names import inside_a_check
from biopsy.processes.watch import Stop
from biopsy.processes.writing import write_whole
from biopsy.slow_imports import onnx
from biopsy.text import series


class Outcome(Enum):
    """The outcome of a check of one candidate. Only REPRODUCES advances a search."""

    REPRODUCES = "reproduced"
    OTHER_FAILURE = "another failure"
    PASSES = "passed"
    INVALID = "cannot say"
    TIMED_OUT = "timed out"
    UNSTABLE = "unstable"
    INFRASTRUCTURE = "could not be run"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts that one run of a check left, from which an outcome is judged.

    ``status`` is the exit status, or minus the number of the signal that ended it. ``output`` is stdout and stderr
    together, as bytes, with its middle cut out if it is very long. ``seconds`` is wall time. ``timed_out`` and
    ``out_of_memory``: it was ended at that limit. ``candidate`` is the path of the model, ``scripts`` the files of the
    user's own program, or the ends of their paths; both are empty if unknown. ``remark`` is something about the check
    that its user should know. ``machine`` describes the other machine that it ran on, "" for this one. ``may_be_kept``:
    a journal may keep the answer, since the machine is of a kind that the search knows. ``returned``: a Python function
    returned or raised the answer, so ``status`` is not an exit status.
    """

    status: int
    output: bytes = b""
    verdict: VerdictFile = field(default_factory=VerdictFile)
    seconds: float = 0.0
    timed_out: bool = False
    out_of_memory: bool = False
    candidate: str = ""
    scripts: tuple[str, ...] = ()
    remark: str = ""
    machine: str = ""
    may_be_kept: bool = True
    returned: bool = False


@dataclass(frozen=True)
class Judged:
    """An outcome with its reason in words and its evidence."""

    outcome: Outcome
    reason: str
    evidence: Evidence

    def event(self, number: int, stage: str) -> events.Checked:
        """The event for this run of a check."""
        return events.Checked(
            number=number,
            stage=stage,
            outcome=self.outcome.value,
            reason=self.reason,
            seconds=self.evidence.seconds,
            output=self.evidence.output,
        )


class Check(ABC):
    """Decides about one candidate: a command, a Python function, a person.

    A subclass has ``run`` and ``line``; everything else has a default that fits most.
    """

    automatic: bool = True
    """Whether it needs nobody's attention, so that more may be checked than the search needs."""
    stoppable: bool = False
    """Whether a run heeds ``stop``, so that it may run in another thread than the one that waits for it."""
    sees_values: bool = True
    """Whether its answer may depend on what the candidate computes."""
    names_candidate: bool = True
    """Whether it is given the candidate's path; if not, it knows the usual path."""
    given: str = ""
    """What a Python function is given, and what it could be given instead; "" for a check that is none."""

    @property
    def files(self) -> Sequence[Path]:
        """The files and folders that its answers depend on, besides the candidate."""
        return ()

    @property
    def programs(self) -> Sequence[Path]:
        """The files that it runs rather than reads: its script, and modules in the script's folder."""
        return ()

    def names_file(self, path: Path) -> bool:
        """Whether it is given the path of a file that it reads; if not, it knows the usual path."""
        return False

    def with_files(self, files: Mapping[Path, Path]) -> Check:
        """The same check with other files in place of some that it names."""
        return self

    @property
    def settings(self) -> Mapping[str, str]:
        """What its answers depend on, by option name: its own words, and its limits."""
        return {"check": self.line(Path("{}"))}

    @abstractmethod
    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Check the model at ``candidate``, unless ``stop`` says that the answer is not needed any more.

        Raises CheckError if the check itself could not be run.
        """

    @abstractmethod
    def line(self, candidate: Path) -> str:
        """The line that a person types to repeat this check."""

    def start(self) -> None:  # noqa: B027 -- most have nothing to warm up
        """Begin to warm up, without waiting."""

    def expect(self, seconds: float) -> None:  # noqa: B027 -- most have no limit
        """Report how long the original took, to tell a candidate that hangs from a slow one."""

    def fed(self, inputs: Path) -> Check:
        """The same check with inputs from another file. Only for a check that feeds candidates."""
        raise NotImplementedError(f"{inputs}: this check feeds nothing")

    def glance(self) -> Check:
        """The same check, which may stop at the first thing it finds wrong."""
        return self

    def telling(self, option: str) -> Check | None:
        """The same check, which tells what a hidden option of ``run`` makes it tell; None if it cannot."""
        return None

    def alone(self, number: int) -> Check | None:
        """The same check of one of its two engines (``number`` is 0 or 1), held against float64.

        None if it does not compare two.
        """
        return None

    def cold(self) -> Check:
        """The same check without warm processes: for the final check."""
        return self

    def foresee_cold(self) -> None:  # noqa: B027 -- most have nothing to load
        """Announce a run of ``cold`` soon, so that what it needs can be loaded meanwhile."""

    def close(self) -> None:  # noqa: B027 -- most keep nothing warm
        """End warm processes."""


DEFAULT_FOLDER = Path("polygraphy_artifacts")
_FOLDER_OF = {Outcome.REPRODUCES: "bad", Outcome.PASSES: "good"}


@dataclass(frozen=True)
class Artifacts:
    """Files to sort after each check into the folders ``good``, ``bad`` and ``other``, overwriting nothing."""

    files: tuple[Path, ...] = ()
    folder: Path = DEFAULT_FOLDER

    def sort(self, outcome: Outcome, iteration: int, phase: str) -> list[Path]:
        """Move every file that exists to the folder of its outcome, named by time, iteration and phase.

        Returns the files that were not there. Raises UsageError if the folder cannot be written, or if the default
        folder is a link; a folder that the user named may be one.
        """
        missing = []
        for file in self.files:
            if file.exists():
                folder = self.folder / _FOLDER_OF.get(outcome, "other")
                when = f"_{time.strftime('%m-%d-%y_%H-%M-%S')}_N{iteration}{f'_{phase}' if phase else ''}"
                try:
                    for own in {self.folder, folder} if self.folder == DEFAULT_FOLDER else {folder}:
                        if own.is_symlink():
                            raise OSError(errno.ELOOP, f"{own} is a symbolic link")
                    folder.mkdir(parents=True, exist_ok=True)
                    numbers = itertools.count(1)
                    target = folder / _short(file.stem, f"{when}{file.suffix}")
                    while os.path.lexists(target):
                        target = folder / _short(file.stem, f"{when}_{next(numbers)}{file.suffix}")
                    shutil.move(file, target)
                except OSError as error:
                    raise errors.UsageError(f"cannot sort {file} into {folder}: {error.strerror or error}") from error
            else:
                missing.append(file)
        return missing


def _short(stem: str, ending: str) -> str:
    """A file name of at most 255 bytes, as file systems allow; only the stem is cut."""
    room = _LONGEST_NAME - len(os.fsencode(ending))
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem + ending


_LONGEST_NAME = 255


def write_iteration(path: Path, iteration: int) -> None:
    """Write the file of ``--iter-info``: ``{"iteration": N}``."""
    write_whole(path, [json.dumps({"iteration": iteration}, indent=4).encode()])


def require_distinct(files: Sequence[Path], reserved: Path) -> None:
    """Raise UsageError if an artifact is the result file or an existing folder, because artifacts are moved."""
    for file in files:
        if file.is_dir():
            raise errors.UsageError(
                f"{file} is given as an artifact, but is an existing folder, which would be moved away",
                next_steps=["name the files, or a folder that the check makes anew each time"],
            )
        if file.resolve() == reserved.resolve():
            raise errors.UsageError(f"{file} is given as an artifact and as the output: it would be moved away")


Form = Literal["path", "model", "bytes", "str"]
"""What a function is given: a candidate's path, an onnx.ModelProto, the bytes of the file, or the path as str."""

_FORMS: Mapping[Form, str] = {
    "path": "a pathlib.Path",
    "model": "an onnx.ModelProto",
    "bytes": "bytes",
    "str": "a str",
}


class FunctionCheck(Check):
    """Calls ``function`` with each candidate, in the form that it ``takes``.

    True means that the model fails, False that it passes. An exception is a failure too, with its type and the first
    line of its message as signature. Errors of biopsy keep their meaning: EngineFailure is a failure of its stage and
    kind, CannotCompare and DoesNotFit say nothing about the candidate, and infrastructure errors stop the search.
    """

    def __init__(self, function: Callable[[Any], object], *, takes: Form = "path") -> None:
        self.function = function
        self.takes = takes
        forms = {form: f'{text} (takes="{form}")' for form, text in _FORMS.items()}
        self.given = f"the function is given {forms.pop(takes)}, not {series([*forms.values()], 'or')}"

    def line(self, candidate: Path) -> str:
        """The call, for messages."""
        name = getattr(self.function, "__qualname__", repr(self.function))
        path = repr(str(candidate))
        shown = {"model": f"onnx.load({path})", "bytes": f"Path({path}).read_bytes()"}
        return f"{name}({shown.get(self.takes, path)})"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Call the function once. Raises CheckError if it returns anything but True or False, or gets no model."""
        model: Any = candidate
        if self.takes == "str":
            model = str(candidate)
        elif self.takes == "bytes":
            model = candidate.read_bytes()
        elif self.takes == "model":
            try:
                model = onnx.load(candidate)
            except Exception as error:  # whatever onnx, protobuf or the file system raises: the function is not asked
                raise errors.CheckError(
                    f"{candidate} cannot be loaded as an onnx.ModelProto for the check: {error}",
                    next_steps=['take the path instead: takes="path"'],
                ) from error
        started = time.monotonic()
        try:
            with inside_a_check():
                answer = self.function(model)
        except Exception as error:  # any exception of the caller's function is its answer
            seconds = time.monotonic() - started
            return Evidence(status=1, verdict=verdict_of_error(error), seconds=seconds, returned=True)
        seconds = time.monotonic() - started
        if answer is True or answer is False or type(answer).__name__ == "bool":  # numpy's bool is one too
            return Evidence(status=1 if answer else 0, seconds=seconds, returned=True)
        raise errors.CheckError(
            f"the check {self.line(candidate)} returned {answer!r}: True means that the model fails"
        )


QUESTION = "[p]ass or [f]ail? ([s]kip, [u]ndo, [q]uit) "


class UndoError(Exception):
    """The person takes back the previous answer."""


class InteractiveCheck(Check):
    """Asks a person about each candidate. ``ask`` shows a question and returns the typed line.

    Like input(), it raises EOFError at the end of the input, RuntimeError or OSError if there is none; the search then
    ends.
    """

    automatic = False

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._ask = ask
        self._answered = False

    def line(self, candidate: Path) -> str:
        """What the person is asked to look at."""
        return f"look at {candidate}"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Ask until the answer is understood.

        Raises Interrupted on [q]uit, UndoError on [u]ndo, UsageError if nobody answers the first question.
        """
        started = time.monotonic()
        while True:
            try:
                answer = self._ask(f"{candidate}: {QUESTION}").strip().lower()
            except (EOFError, RuntimeError, OSError) as error:
                if not self._answered:
                    raise errors.UsageError(
                        "without --check you are asked about each candidate, but nobody answers: the input has ended",
                        next_steps=["--check COMMAND ...", "or run it in a terminal"],
                    ) from error
                answer = "q"
            self._answered = True
            seconds = time.monotonic() - started
            if answer in {"p", "pass"}:
                return Evidence(status=0, seconds=seconds)
            if answer in {"f", "fail"}:
                return Evidence(status=1, seconds=seconds)
            if answer in {"s", "skip"}:
                return Evidence(status=0, verdict=VerdictFile(outcome="invalid", message="skipped"), seconds=seconds)
            if answer in {"u", "undo"}:
                raise UndoError
            if answer in {"q", "quit"}:
                raise errors.Interrupted("stopped on request")
