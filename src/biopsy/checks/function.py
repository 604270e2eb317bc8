"""A check that is a Python function."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.isolation.watch import Stop
from biopsy.model.known_names import inside_a_check
from biopsy.text import first_line


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
        started = time.monotonic()
        try:
            with inside_a_check():
                answer = self.function(self._argument(candidate))
        except Exception as error:  # whatever the caller's function raises is what it says of the candidate
            return Evidence(1, b"", _verdict(error), time.monotonic() - started)
        seconds = time.monotonic() - started
        if answer is True or answer is False or type(answer).__name__ == "bool":  # numpy's bool is one too
            return Evidence(1 if answer else 0, seconds=seconds)
        raise errors.CheckError(
            f"the check {self.line(candidate)} returned {answer!r}: True means that the model fails"
        )

    def _argument(self, candidate: Path) -> object:
        if not self.as_proto:
            return candidate
        import onnx

        return onnx.load(candidate)


def _verdict(error: Exception) -> VerdictFile:
    if isinstance(error, errors.EngineFailure):
        return VerdictFile("fails", error.engine, error.stage, error.kind, error.message)
    if isinstance(error, errors.CannotCompare | errors.DoesNotFit):
        return VerdictFile("invalid", message=error.message)
    if isinstance(error, errors.BiopsyError):
        return VerdictFile("infrastructure", message=error.message)
    # What follows in the messages of numpy and torch are the values, another text for each shape.
    return VerdictFile("fails", kind=type(error).__name__, message=first_line(str(error)))
