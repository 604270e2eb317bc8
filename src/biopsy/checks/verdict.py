"""The verdict file: how a check tells more than its exit status.

A reduction sets the environment variable ``BIOPSY_VERDICT`` to a path. A check, in any language, may write one JSON
object there; every key is optional:

    {"outcome": "fails" | "passes" | "invalid" | "infrastructure",
     "engine": "onnxrt", "stage": "load" | "build" | "run" | "compare", "kind": "mismatch",
     "message": "one line", "outputs": ["y"]}

``outcome`` overrides the exit status, except that a missing or empty file changes nothing. The other keys become
part of the signature, so that a failure of another kind does not lead the reduction astray.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from biopsy import errors

VARIABLE = "BIOPSY_VERDICT"
"""Name of the environment variable that holds the path of the verdict file."""

OUTCOMES = frozenset({"fails", "passes", "invalid", "infrastructure"})
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class VerdictFile:
    """What a check said of itself. Empty strings and tuples mean: not said."""

    outcome: str = ""
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: str = ""
    outputs: tuple[str, ...] = ()


def report(verdict: VerdictFile) -> None:
    """Write a verdict, if a reduction asked for one; otherwise do nothing."""
    path = os.environ.get(VARIABLE)
    if path:
        Path(path).write_text(json.dumps(asdict(verdict)), encoding="utf-8")


def report_error(error: errors.BiopsyError) -> None:
    """Write what an exception that ends our own process means for a check."""
    if isinstance(error, errors.EngineFailure):
        verdict = VerdictFile("fails", error.engine, error.stage, error.kind, error.message)
    elif isinstance(error, errors.CannotCompare):
        verdict = VerdictFile("invalid", kind=type(error).__name__, message=error.message)
    else:
        verdict = VerdictFile("infrastructure", kind=type(error).__name__, message=error.message)
    report(verdict)


def report_mismatch(engine: str, outputs: Sequence[str], kind: str = "mismatch") -> None:
    """Write that ``engine`` gave other values than it should for ``outputs``; ``kind`` may also be "not-finite"."""
    report(VerdictFile("fails", engine, "compare", kind, outputs=tuple(outputs)))


def report_pass() -> None:
    """Write that the model passes."""
    report(VerdictFile("passes"))


def read(path: Path) -> VerdictFile:
    """The verdict in a file; an empty one if the file is missing or empty.

    Raises CheckError if the file holds something else than a verdict: a check that tries to say something and is
    not understood must not be guessed at.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return VerdictFile()
    if not data.strip():
        return VerdictFile()
    if len(data) > _MOST_BYTES:
        raise errors.CheckError(f"the verdict file {path} is larger than {_MOST_BYTES} bytes")
    try:
        found = json.loads(data)
    except ValueError as error:
        raise errors.CheckError(f"the verdict file {path} is no JSON: {error}") from error
    return _verdict(found, path)


def _verdict(found: object, path: Path) -> VerdictFile:
    if not isinstance(found, dict):
        raise errors.CheckError(f"the verdict file {path} holds no JSON object")
    texts = {key: found.get(key, "") for key in ("outcome", "engine", "stage", "kind", "message")}
    outputs = found.get("outputs", [])
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(outputs, list):
        raise errors.CheckError(f"the verdict file {path} has a value of a wrong type")
    if texts["outcome"] and texts["outcome"] not in OUTCOMES:
        raise errors.CheckError(f"the verdict file {path} has an unknown outcome {texts['outcome']!r}")
    return VerdictFile(**texts, outputs=tuple(str(output) for output in outputs))
