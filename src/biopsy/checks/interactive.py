"""A check that is a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from biopsy import errors
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.isolation.watch import Stop

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
        question = f"{candidate}: {QUESTION}"
        while True:
            answer = self._answer(question)
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

    def _answer(self, question: str) -> str:
        try:
            answer = self._ask(question).strip().lower()
        except (EOFError, RuntimeError, OSError) as error:
            if self._answered:
                return "q"
            raise errors.UsageError(
                "without --check you are asked about each candidate, but nobody answers: the input has ended",
                next_steps=["--check COMMAND ...", "or run it in a terminal"],
            ) from error
        self._answered = True
        return answer
