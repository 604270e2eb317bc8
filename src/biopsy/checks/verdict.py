"""The verdict file: how a check tells more than its exit status.

A reduction sets the environment variable ``BIOPSY_VERDICT`` to a path. A check, in any language, may write one JSON
object there; every key is optional:

    {"outcome": "fails" | "passes" | "invalid" | "infrastructure",
     "engine": "onnxrt", "stage": "load" | "build" | "run" | "compare", "kind": "mismatch",
     "message": "one line", "outputs": ["y"], "status": 1,
     "mismatches": [{"output": "y", "kind": "mismatch", "elements": 1024, "wrong": 740, ...}],
     "rounding": {"verdict": "rounding" | "bug" | "unknown", "times": 2.5}, "hint": "one line", "looked": true,
     "settings": ["atol=1e9 of biopsy.toml"]}

``outcome`` overrides the exit status, except that a missing or empty file changes nothing. The other keys become
part of the signature, so that a failure of another kind does not lead the reduction astray. With ``status``, the exit
status of whoever wrote the file, the verdict only counts if the check as a whole agrees whether that was a success:
``biopsy run`` gives it, since a script that runs it may turn its answer round, or fail for another reason.
``mismatches`` are the sizes of what differs, ``rounding`` is what float64 says of them: see ``comparison.mismatch``.
``hint`` is what a person must know of the failure, such as that every engine fails alike; it is no part of the
signature.

``settings`` are those that a settings file gave to a command of ours inside of the check. Commands that follow keep
what stands there, and it counts whatever else of the verdict does.

``looked`` is the handshake of our own commands: whatever they need is loaded, and now the model is opened. They write
it first, and alone. One that ends without it, or without an outcome, has died of something else than the model.
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
    """What a check said of itself. Empty strings and tuples mean: not said."""

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

    @property
    def has_looked(self) -> bool:
        """Whether who wrote it has come as far as the model; an outcome says so too, also in older versions."""
        return self.looked or bool(self.outcome)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every kind of failure that the check has seen, the one that names it among them."""
        return tuple(sorted({self.kind, *(one.kind for one in self.mismatches)} - {""}))


def is_wanted() -> bool:
    """Whether somebody will read a verdict: what it costs to find out more is not spent otherwise."""
    return bool(os.environ.get(VERDICT_VARIABLE))


def report(verdict: VerdictFile) -> None:
    """Write a verdict, if a reduction asked for one; otherwise do nothing.

    Raises BiopsyError if it cannot be written, as on a full disk: an exit status alone would be taken for an answer.
    """
    if not is_wanted():
        return
    with contextlib.suppress(errors.CheckError):  # what stands there and is not understood is replaced
        settings = (*read(Path(os.environ[VERDICT_VARIABLE])).settings, *verdict.settings)
        verdict = replace(verdict, settings=tuple(dict.fromkeys(settings)))
    _write(json.dumps(asdict(verdict)).encode(), os.O_CREAT)


def report_settings(settings: str) -> None:
    """Add what a settings file gave to this command; all else that was said of the same check stays.

    Raises BiopsyError as ``report`` does, and CheckError if what stands there is not understood.
    """
    if is_wanted():
        report(replace(read(Path(os.environ[VERDICT_VARIABLE])), settings=(settings,)))


def report_looking() -> None:
    """Say that nothing but the model comes now: until then, whatever ends this process is not the model's fault.

    What a command before this one has said of the same check stays. Raises BiopsyError as ``report`` does.
    """
    with contextlib.suppress(FileExistsError):
        _write(b'{"looked": true}', os.O_CREAT | os.O_EXCL)


def _write(data: bytes, flags: int) -> None:
    """Put bytes in the place of the verdict, never cutting it short first: it may be the last thing that is done."""
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
        return  # whoever asked has gone
    except OSError as error:
        raise errors.BiopsyError(f"the verdict file {path} cannot be written: {error.strerror or error}") from error
    raise errors.BiopsyError(f"the verdict file {path} cannot be written whole: is its disk full?")


def believed(verdict: VerdictFile, status: int) -> VerdictFile:
    """The verdict if it fits a check that ended with ``status``; of one that was only a part of it, the settings."""
    if verdict.status is None or (verdict.status == 0) == (status == 0):
        return verdict
    return VerdictFile(settings=verdict.settings)


def of_error(error: Exception) -> VerdictFile:
    """What an exception says of the model that was looked at."""
    kind = type(error).__name__
    if isinstance(error, errors.EngineFailure):
        told = VerdictFile(outcome="fails", engine=error.engine, stage=error.stage, kind=error.kind, looked=True)
        return replace(told, message=error.message)
    if isinstance(error, errors.CannotCompare | errors.DoesNotFit):
        return VerdictFile(outcome="invalid", kind=kind, message=error.message)
    if isinstance(error, errors.BiopsyError):
        return VerdictFile(outcome="infrastructure", kind=kind, message=error.message)
    # What follows in the messages of numpy and torch are the values, another text for each shape.
    return VerdictFile(outcome="fails", kind=kind, message=first_line(str(error)))


def report_error(error: errors.BiopsyError, hint: str = "") -> None:
    """Write what an exception that ends our own process means for a check."""
    report(replace(of_error(error), status=error.status, hint=hint))


def report_mismatch(
    engine: str,
    outputs: Sequence[str],
    kind: str = "mismatch",
    mismatches: Sequence[Mismatch] = (),
    rounding: Rounding | None = None,
    hint: str = "",
) -> None:
    """Write that ``engine`` gave other values than it should for ``outputs``.

    ``mismatches`` are their sizes, whose gravest kind then counts; else ``kind``, which may also be "not-finite".
    """
    told = VerdictFile(outcome="fails", engine=engine, stage="compare", kind=kind_of(mismatches) or kind, status=1)
    sizes, names = tuple(mismatches), tuple(outputs)
    report(replace(told, outputs=names, mismatches=sizes, rounding=rounding, hint=hint, looked=True))


def report_pass(hint: str = "") -> None:
    """Write that the model passes; ``hint`` says what makes that worth little."""
    report(VerdictFile(outcome="passes", status=0, looked=True, hint=hint))


def read(path: Path) -> VerdictFile:
    """The verdict in a file; an empty one if the file is missing or empty.

    Raises CheckError if it is no plain file, or holds something else than a verdict: a check that tries to say
    something and is not understood must not be guessed at.
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
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.CheckError(f"the verdict file {path} is no JSON: {error}") from error
    return _verdict(found, path)


def _verdict(found: object, path: Path) -> VerdictFile:
    if not isinstance(found, dict):
        raise errors.CheckError(f"the verdict file {path} holds no JSON object")
    try:
        verdict = record_of(VerdictFile, {**found, "mismatches": (), "rounding": None})
    except ValueError as error:
        raise errors.CheckError(f"the verdict file {path} has a value of a wrong type") from error
    if verdict.outcome and verdict.outcome not in OUTCOMES:
        raise errors.CheckError(f"the verdict file {path} has an unknown outcome {verdict.outcome!r}")
    try:
        sizes = mismatches_from(found.get("mismatches", []))
        return replace(verdict, mismatches=sizes, rounding=rounding_from(found.get("rounding")))
    except ValueError as error:
        raise errors.CheckError(f"the verdict file {path} has {error}") from error
