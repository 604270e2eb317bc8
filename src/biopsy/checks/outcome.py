"""What a check is, what it can say, and what a run of it leaves behind; and the simplest checks: a Python function,
and a person.
"""

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
from typing import Any

from biopsy import errors, events
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.verdict import of_error as verdict_of_error
from biopsy.model.known_names import inside_a_check
from biopsy.processes.watch import Stop
from biopsy.processes.writing import write_whole


class Outcome(Enum):
    """What a check said of one candidate. Only REPRODUCES advances a search."""

    REPRODUCES = "reproduced"
    OTHER_FAILURE = "another failure"
    PASSES = "passed"
    INVALID = "cannot say"
    TIMED_OUT = "timed out"
    UNSTABLE = "unstable"
    INFRASTRUCTURE = "could not be run"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run of a check left: the facts from which an outcome is judged.

    ``status`` is the exit status, or minus the number of the signal that ended it. ``output`` is what it printed,
    stdout and stderr in one, any bytes, its middle cut out when it is very long. ``seconds`` is wall time.
    ``timed_out`` and ``out_of_memory``: it was ended because it reached that limit. ``candidate`` is the path of the
    model that it looked at, ``scripts`` the files that are the user's own program, or the ends of their paths; both are
    empty if nobody can tell. ``remark`` is what the check tells of itself that its user should know. ``machine`` is the
    other machine that it ran on, in words, "" for this one; ``may_be_kept``: another search may be told of the answer,
    since the machine is of a kind that the search knows of.
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


@dataclass(frozen=True)
class Judged:
    """An outcome with its reason in words, and the evidence it rests on."""

    outcome: Outcome
    reason: str
    evidence: Evidence

    def event(self, number: int, stage: str) -> events.Checked:
        """What listeners are told of this run of a check."""
        return events.Checked(
            number=number,
            stage=stage,
            outcome=self.outcome.value,
            reason=self.reason,
            seconds=self.evidence.seconds,
            output=self.evidence.output,
        )


class Check(ABC):
    """Whatever decides about one candidate: a command, a Python function, a person.

    A subclass has ``run`` and ``line``; all else has a default that fits most.
    """

    automatic: bool = True
    """Whether it costs nobody's attention, so that the program may check more than the search needs."""
    stoppable: bool = False
    """Whether a run takes note of ``stop``, so that it may run in another thread than who waits for it."""
    sees_values: bool = True
    """Whether it may depend on what the candidate computes."""
    names_candidate: bool = True
    """Whether it is told where the candidate stands; if not, it knows the usual place by itself."""

    @property
    def files(self) -> Sequence[Path]:
        """Files and folders that its answers depend on, besides the candidate."""
        return ()

    @property
    def programs(self) -> Sequence[Path]:
        """Those of its files that it runs, rather than reads: its script, and what that imports of its own folder."""
        return ()

    def names_file(self, path: Path) -> bool:
        """Whether it is told where a file stands that it reads besides; if not, it knows the usual place by itself."""
        return False

    def with_files(self, files: Mapping[Path, Path]) -> Check:
        """The same check, told other files in place of those that it names. Only for files that it names."""
        return self

    @property
    def settings(self) -> Mapping[str, str]:
        """What its answers depend on, by the name of the option: its own words, and its limits."""
        return {"check": self.line(Path("{}"))}

    @abstractmethod
    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Look at the model at ``candidate``, unless ``stop`` says that nobody waits for the answer any more.

        Raises CheckError if the check itself could not be run.
        """

    @abstractmethod
    def line(self, candidate: Path) -> str:
        """What a person types to repeat this check."""

    def start(self) -> None:  # noqa: B027 -- most have nothing to warm up
        """Begin to warm up, without waiting for it."""

    def expect(self, seconds: float) -> None:  # noqa: B027 -- most have no limit
        """Say how long the original took, so that a candidate that hangs can be told from one that is slow."""

    def fed(self, inputs: Path) -> Check:
        """The same check, which feeds candidates from another file. Only for one that feeds them."""
        raise NotImplementedError(f"{inputs}: this check feeds nothing")

    def glance(self) -> Check:
        """The same check, which may stop at the first thing that it finds wrong."""
        return self

    def arbiter(self) -> Check | None:
        """The same check, which judges a mismatch against float64 too; None if it cannot."""
        return None

    def cold(self) -> Check:
        """The same check without anything that was kept warm for it: for the final check."""
        return self

    def foresee_cold(self) -> None:  # noqa: B027 -- most have nothing to load
        """Say that the check of ``cold`` will be asked for soon: what it needs may be loaded meanwhile."""

    def close(self) -> None:  # noqa: B027 -- most keep nothing warm
        """End what was kept warm."""


# Files of each iteration, sorted by what the check said: ``good``, ``bad`` and ``other``; none is overwritten.

DEFAULT_FOLDER = Path("polygraphy_artifacts")
_FOLDER_OF = {Outcome.REPRODUCES: "bad", Outcome.PASSES: "good"}


@dataclass(frozen=True)
class Artifacts:
    """Which files to sort after each check, and where to."""

    files: tuple[Path, ...] = ()
    folder: Path = DEFAULT_FOLDER

    def sort(self, outcome: Outcome, iteration: int, phase: str) -> list[Path]:
        """Move every file that exists to the folder of its outcome, named by time, iteration and phase.

        Returns the files that were not there. Raises UsageError if the folder cannot be written, or is a link: not
        where a person has named it, but where the name is ours.
        """
        missing = []
        for file in self.files:
            if file.exists():
                folder = self.folder / _FOLDER_OF.get(outcome, "other")
                when = f"_{time.strftime('%m-%d-%y_%H-%M-%S')}_N{iteration}{f'_{phase}' if phase else ''}"
                try:
                    for ours in {self.folder, folder} if self.folder == DEFAULT_FOLDER else {folder}:
                        if ours.is_symlink():
                            raise OSError(errno.ELOOP, f"{ours} is a symbolic link")
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


def _short(stem: str, rest: str) -> str:
    """A name of at most 255 bytes, as file systems take it, whose end is whole."""
    room = _LONGEST_NAME - len(os.fsencode(rest))
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem + rest


_LONGEST_NAME = 255


def write_iteration(path: Path, iteration: int) -> None:
    """Write the file of ``--iter-info``: ``{"iteration": N}``."""
    write_whole(path, [json.dumps({"iteration": iteration}, indent=4).encode()])


def require_distinct(files: Sequence[Path], reserved: Path) -> None:
    """Raise UsageError if an artifact is the result file, or a folder that stands there already: it would be moved."""
    for file in files:
        if file.is_dir():
            raise errors.UsageError(
                f"{file} is given as an artifact, and it is a folder that stands there already: it would be moved away",
                next_steps=["name the files, or a folder that the check makes anew each time"],
            )
        if file.resolve() == reserved.resolve():
            raise errors.UsageError(f"{file} is given as an artifact and as the output: it would be moved away")


class FunctionCheck(Check):
    """Calls ``function`` with each candidate: a path, or an onnx.ModelProto if ``as_proto``.

    True means that the model fails, False that it passes. An exception is a failure too, its type and the first line of
    its message being its signature, except that errors of biopsy keep their meaning: EngineFailure is a failure of its
    stage and kind, CannotCompare and DoesNotFit say nothing about the candidate, and what is infrastructure stops the
    search.
    """

    def __init__(self, function: Callable[[Any], object], *, as_proto: bool) -> None:
        self.function = function
        self.as_proto = as_proto

    def line(self, candidate: Path) -> str:
        """The call, for messages."""
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{name}({'onnx.load(' if self.as_proto else ''}{str(candidate)!r}{')' if self.as_proto else ''})"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Call the function once. Raises CheckError if it gives something else than True or False."""
        if self.as_proto:
            from onnx import load
        started = time.monotonic()
        try:
            with inside_a_check():
                answer = self.function(load(candidate) if self.as_proto else candidate)
        except Exception as error:  # whatever the caller's function raises is what it says of the candidate
            return Evidence(status=1, output=b"", verdict=verdict_of_error(error), seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        if answer is True or answer is False or type(answer).__name__ == "bool":  # numpy's bool is one too
            return Evidence(status=1 if answer else 0, seconds=seconds)
        raise errors.CheckError(
            f"the check {self.line(candidate)} returned {answer!r}: True means that the model fails"
        )


# A check that is a person.

QUESTION = "[p]ass or [f]ail? ([s]kip, [u]ndo, [q]uit) "


class UndoError(Exception):
    """The person takes back the answer before this one."""


class InteractiveCheck(Check):
    """Asks about each candidate. ``ask`` shows a question and returns the line typed.

    It raises EOFError where no more lines come, RuntimeError or OSError where there is nothing to read from, as input()
    does: the search ends.
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
