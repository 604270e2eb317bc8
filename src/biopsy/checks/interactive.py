"""A check that is a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from biopsy import errors
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile

QUESTION = "[p]ass or [f]ail? ([s]kip, [u]ndo, [q]uit) "


class UndoError(Exception):
    """The person takes back the answer before this one."""


class InteractiveCheck:
    """Asks about each candidate. ``ask`` shows a question and returns the line typed; EOFError ends the search."""

    automatic = False
    names_candidate = True

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._ask = ask

    def line(self, candidate: Path) -> str:
        """What the person is asked to look at."""
        return f"look at {candidate}"

    def run(self, candidate: Path) -> Evidence:
        """Ask until the answer is understood. Raises Interrupted on [q]uit, UndoError on [u]ndo."""
        started = time.monotonic()
        question = f"{candidate}: {QUESTION}"
        while True:
            try:
                answer = self._ask(question).strip().lower()
            except EOFError:
                answer = "q"
            seconds = time.monotonic() - started
            if answer in {"p", "pass"}:
                return Evidence(0, seconds=seconds)
            if answer in {"f", "fail"}:
                return Evidence(1, seconds=seconds)
            if answer in {"s", "skip"}:
                return Evidence(0, verdict=VerdictFile("invalid", message="skipped"), seconds=seconds)
            if answer in {"u", "undo"}:
                raise UndoError
            if answer in {"q", "quit"}:
                raise errors.Interrupted("stopped on request")
