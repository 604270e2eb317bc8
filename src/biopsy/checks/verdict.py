"""The verdict file: how a check says more than its exit status.

A reduction sets the environment variable ``BIOPSY_VERDICT`` to a path. A check, in any language, may write one JSON
object there; every key is optional:

    {"outcome": "fails" | "passes" | "invalid" | "infrastructure",
     "engine": "onnxrt", "stage": "load" | "build" | "run" | "compare", "kind": "mismatch",
     "message": "one line", "outputs": ["y"], "status": 1,
     "mismatches": [{"output": "y", "kind": "mismatch", "elements": 1024, "wrong": 740, ...}],
     "rounding": {"verdict": "rounding" | "bug" | "unknown", "times": 2.5}, "hint": "one line", "looked": true,
     "settings": ["atol=1e9 of biopsy.toml"], "next_steps": ["pip install openvino"]}

``outcome`` overrides the exit status; a missing or empty file changes nothing. The other keys become part of the
signature, so that a failure of another kind does not lead the reduction astray. ``status`` is the exit status of the
program that wrote the file: the verdict then counts only if the check as a whole agrees on success or failure.
``biopsy run`` gives it, since a script that calls it may invert its answer or fail for another reason.
``mismatches`` are the sizes of what differs, ``rounding`` is what float64 says of them: see ``comparison.mismatch``.
``hint`` is what the user should know about the failure, such as that every engine fails alike; it is not part of the
signature. Nor are ``next_steps``, what to do about a check that could not be run, best first.

``settings`` are options that a settings file gave to a command of ours inside the check. Later commands keep those
already in the file, and they count even if the rest of the verdict does not.

``looked`` is a handshake of our own commands: everything they need is loaded, and the model is opened now. They write
it first, alone. A command that ends without it, or without an outcome, did not die because of the model.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from biopsy import errors
from biopsy.comparison.mismatch import Mismatch, Rounding, kind_of, mismatches_from, rounding_from
from biopsy.processes.reading import read_plain
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.records import record_of
from biopsy.text import first_line

OUTCOMES = frozenset({"fails", "passes", "invalid", "infrastructure"})
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class VerdictFile:
    """What a check reported. Empty strings and tuples mean: not reported."""

    outcome: str = ""
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: str = ""
    outputs: tuple[str, ...] = ()
    status: int | None = None
    mismatches: tuple[Mismatch, ...] = ()
    rounding: Rounding | None = None
    hint: str = ""
    looked: bool = False
    settings: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    @property
    def has_looked(self) -> bool:
        """Whether the check got as far as the model; an outcome says so too, even from older versions."""
        return self.looked or bool(self.outcome)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every kind of failure that the check has seen, including ``kind``."""
        return tuple(sorted({self.kind, *(mismatch.kind for mismatch in self.mismatches)} - {""}))


def is_wanted() -> bool:
    """Whether a reduction will read the verdict, so that it is worth finding out more."""
    return bool(os.environ.get(VERDICT_VARIABLE))


def report(verdict: VerdictFile) -> None:
    """Write a verdict if a reduction asked for one; otherwise do nothing.

    Raises BiopsyError if it cannot be written, as on a full disk: the exit status alone would be taken for an answer.
    """
    if not is_wanted():
        return
    with contextlib.suppress(errors.CheckError):  # an existing file that is not understood is replaced
        settings = (*read(Path(os.environ[VERDICT_VARIABLE])).settings, *verdict.settings)
        verdict = replace(verdict, settings=tuple(dict.fromkeys(settings)))
    _write(json.dumps(asdict(verdict)).encode(), os.O_CREAT)


def report_settings(settings: str) -> None:
    """Add the options that a settings file gave to this command; the rest of the verdict stays.

    Raises BiopsyError as ``report`` does, and CheckError if the existing file is not understood.
    """
    if is_wanted():
        report(replace(read(Path(os.environ[VERDICT_VARIABLE])), settings=(settings,)))


def report_looking() -> None:
    """Report that only the model remains to be opened: if this process dies before, it is not the model's fault.

    An existing verdict of an earlier command stays. Raises BiopsyError as ``report`` does.
    """
    with contextlib.suppress(FileExistsError):
        _write(b'{"looked": true}', os.O_CREAT | os.O_EXCL)


def _write(data: bytes, flags: int) -> None:
    """Replace the verdict without truncating it first: the process may die at any moment."""
    path = os.environ.get(VERDICT_VARIABLE)
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | flags, 0o600)
        try:
            written = os.write(descriptor, data)
            if written == len(data):
                if os.fstat(descriptor).st_size > written:
                    os.ftruncate(descriptor, written)
                return
        finally:
            os.close(descriptor)
    except FileExistsError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return  # the reduction has gone
    except OSError as error:
        raise errors.BiopsyError(f"the verdict file {path} cannot be written: {error.strerror or error}") from error
    raise errors.BiopsyError(f"the verdict file {path} cannot be written whole: is its disk full?")


def believed(verdict: VerdictFile, status: int) -> VerdictFile:
    """The verdict if it agrees with a check that ended with ``status``; else only its settings."""
    if verdict.status is None or (verdict.status == 0) == (status == 0):
        return verdict
    return VerdictFile(settings=verdict.settings)


def of_error(error: Exception) -> VerdictFile:
    """The verdict for an exception that was raised while looking at the model."""
    kind = type(error).__name__
    if isinstance(error, errors.EngineFailure):
        failure = VerdictFile(outcome="fails", engine=error.engine, stage=error.stage, kind=error.kind, looked=True)
        return replace(failure, message=error.message)
    if isinstance(error, errors.CannotCompare | errors.DoesNotFit):
        return VerdictFile(outcome="invalid", kind=kind, message=error.message)
    if isinstance(error, errors.BiopsyError):
        return VerdictFile(outcome="infrastructure", kind=kind, message=error.message, next_steps=error.next_steps)
    # Only the first line: the values that numpy and torch add below differ for each shape.
    return VerdictFile(outcome="fails", kind=kind, message=first_line(str(error)))


def report_error(error: errors.BiopsyError, hint: str = "") -> None:
    """Write the verdict for an exception that ends our own process."""
    report(replace(of_error(error), status=error.status, hint=hint))


def report_mismatch(
    engine: str,
    outputs: Sequence[str],
    kind: str = "mismatch",
    mismatches: Sequence[Mismatch] = (),
    rounding: Rounding | None = None,
    hint: str = "",
) -> None:
    """Write that ``engine`` gave wrong values for ``outputs``.

    ``mismatches`` are their sizes, and the gravest of their kinds counts; without them ``kind``.
    """
    failure = VerdictFile(outcome="fails", engine=engine, stage="compare", kind=kind_of(mismatches) or kind, status=1)
    sizes, names = tuple(mismatches), tuple(outputs)
    report(replace(failure, outputs=names, mismatches=sizes, rounding=rounding, hint=hint, looked=True))


def report_pass(hint: str = "") -> None:
    """Write that the model passes; ``hint`` says why that may mean little."""
    report(VerdictFile(outcome="passes", status=0, looked=True, hint=hint))


def read(path: Path) -> VerdictFile:
    """Read the verdict in a file; an empty one if the file is missing or empty.

    Raises CheckError if it is not a plain file or holds anything but a verdict: an unclear verdict must not be guessed
    at.
    """
    try:
        data = read_plain(path, _MOST_BYTES)
    except FileNotFoundError:
        return VerdictFile()
    except OSError as error:
        raise errors.CheckError(f"the verdict file {path} cannot be read: {error.strerror or error}") from error
    if not data.strip():
        return VerdictFile()
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.CheckError(f"the verdict file {path} is not JSON: {error}") from error
    return _verdict(tree, path)


def _verdict(tree: object, path: Path) -> VerdictFile:
    if not isinstance(tree, dict):
        raise errors.CheckError(f"the verdict file {path} holds no JSON object")
    try:
        verdict = record_of(VerdictFile, {**tree, "mismatches": (), "rounding": None})
    except ValueError as error:
        raise errors.CheckError(f"the verdict file {path} has a value of a wrong type") from error
    if verdict.outcome and verdict.outcome not in OUTCOMES:
        raise errors.CheckError(f"the verdict file {path} has an unknown outcome {verdict.outcome!r}")
    try:
        sizes = mismatches_from(tree.get("mismatches", []))
        return replace(verdict, mismatches=sizes, rounding=rounding_from(tree.get("rounding")))
    except ValueError as error:
        raise errors.CheckError(f"the verdict file {path} has {error}") from error
