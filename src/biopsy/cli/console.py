"""What is shown: lines for people on stdout, problems on stderr. rich is loaded only for a terminal."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from biopsy import errors


class Console:
    """The terminal, or the file or pipe in its place.

    ``verbosity`` is 0 by default, 1 or more after ``-v``, negative after ``-q``.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self.verbosity = 0

    def say(self, text: str = "") -> None:
        """A result: shown unless ``-q`` is given twice."""
        if self.verbosity > -2:
            self._write(self._out, text)

    def note(self, text: str) -> None:
        """A remark on the way: not shown with ``-q``."""
        if self.verbosity > -1:
            self._write(self._out, text)

    def detail(self, text: str) -> None:
        """Shown only with ``-v``."""
        if self.verbosity > 0:
            self._write(self._out, text)

    def warn(self, text: str) -> None:
        """Something that may make the result worth less: always shown, on stderr."""
        self._write(self._err, _tinted(self._err, "33", "warning: ") + text)

    def failure(self, error: errors.BiopsyError) -> int:
        """Tell of an error in one message: what happened, what was kept, what to type next; returns its status."""
        tag = "interrupted: " if isinstance(error, errors.Interrupted) else "error: "
        text = error.message if error.message != "interrupted" else "nothing was left half-written"
        self._write(self._err, _tinted(self._err, "31", tag) + text)
        if error.kept:
            self._write(self._err, f"  kept  {error.kept}")
        for step in error.next_steps:
            self._write(self._err, f"  next  {step}")
        if self.verbosity > 1:
            import traceback

            self._write(self._err, "".join(traceback.format_exception(error)))
        return error.status

    def defect(self, error: Exception) -> int:
        """Tell of an exception that nobody foresaw; a bug of biopsy, status 4."""
        problem = errors.BiopsyError(
            f"biopsy itself failed: {type(error).__name__}: {error}",
            next_steps=["run the same command with -vv and report what it prints"],
        )
        problem.__cause__ = error
        return self.failure(problem)

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _tinted(stream: TextIO, code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if stream.isatty() and "NO_COLOR" not in os.environ else text
