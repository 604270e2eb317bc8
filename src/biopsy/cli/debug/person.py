"""The person who decides where no ``--check`` is given: questions and answers on the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from biopsy.text import printable


def ask(question: str) -> str:
    """Show a question and read a line, where the person who types it looks; begin a new line after it.

    Raises what input() raises.
    """
    typed = _is_terminal(sys.stdin)
    elsewhere = typed and not _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    shown = sys.stderr if elsewhere else sys.stdout  # as where the output goes into a file
    encoding = (shown.encoding if shown is not None else None) or "utf-8"
    question = printable(question).encode(encoding, "backslashreplace").decode(encoding)
    if elsewhere:
        print(question, end="", file=shown, flush=True)
    try:
        answer = input("" if elsewhere else question)
    except EOFError:
        print(file=shown)
        raise
    if not typed:
        print()  # noqa: T201
    return answer


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is open, and a terminal."""
    return stream is not None and stream.isatty()
