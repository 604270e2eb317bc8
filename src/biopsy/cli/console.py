"""What is shown: lines for people on stdout, problems on stderr. rich is loaded only for a terminal."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from biopsy import errors


class Console:
    """The terminal, or the file or pipe in its place.

    ``verbosity`` is 0 by default, 1 or more after ``-v``, negative after ``-q``. It ``asks`` if a person is the check.
    A stream that was closed, whose reader has gone (``| head``) or whose disk is full takes nothing more; the work goes
    on to its end.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self.verbosity = 0
        self.asks = False

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
        if isinstance(error, errors.Interrupted) and error.resume:
            self._write(self._err, f"  resume  {error.resume}")
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

    def _write(self, stream: TextIO | None, text: str) -> None:
        if stream is None:  # closed before we started, as by ``>&-``
            return
        try:
            print(_encodable(text, stream), file=stream, flush=True)
        except BrokenPipeError:
            _discard_from_now_on(stream)
        except OSError as error:
            _discard_from_now_on(stream)
            if stream is not self._err:
                self.warn(f"cannot write to stdout any more: {error.strerror or error}")


def _encodable(text: str, stream: TextIO) -> str:
    """The text with what the stream's encoding lacks written as escapes."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _discard_from_now_on(stream: TextIO) -> None:
    """Nobody reads the stream any more: send it where nothing fails, or Python's own flush at exit would."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _tinted(stream: TextIO | None, code: str, text: str) -> str:
    plain = stream is None or not stream.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
