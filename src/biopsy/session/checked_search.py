"""A search with a check from its beginning to its end, whatever it searches for.

The ends are checked, the search runs within its budget, the best result is written, and the file that was written is
checked again in a process of its own. However it ends, the best so far is written first. A room that searches gives a
``SearchTask``: how a candidate is made, which outcome is better, and what is written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from biopsy import errors, events
from biopsy.checks.interactive import UndoError
from biopsy.checks.outcome import Check
from biopsy.checks.task import copies
from biopsy.session.budget import BudgetSpentError
from biopsy.session.oracle import Oracle
from biopsy.session.result_file import ResultFile
from biopsy.session.trial import Trial


class SearchTask(Protocol):
    """What is searched for. Only the best result that is known to hold may ever be written."""

    @property
    def has_result(self) -> bool:
        """Whether anything is known that could be written, be it only what the search begins with."""

    @property
    def is_worth_resuming(self) -> bool:
        """Whether a search that goes on from here is spared anything."""

    @property
    def progress(self) -> str:
        """How far the search has come, in words for who has stopped it."""

    def preflight(self) -> None:
        """Check what the search begins with. Raises what ends it before it has begun."""

    def begin(self) -> None:
        """Prepare the search, once what it begins with has been checked."""

    def search(self) -> bool:
        """Search until nothing better can be found. False if it must be done again, knowing more."""

    def undo(self, digest: bytes | None) -> bool:
        """Begin again after a person took back the answer about a model; whether the preflight must be run again.

        ``digest`` is the model's; None if there was no answer to take back.
        """

    def write(self) -> None:
        """Write the best result. Raises UsageError if it cannot be written."""

    def rescue(self) -> str | None:
        """Write the best result after an interruption or error; what is kept, in words, None if nothing is."""

    def verify(self) -> bool:
        """Check the result as it was written. True if the search must be run again, knowing more.

        Raises CheckError if the result does not hold.
        """


class CheckedSearch:
    """Runs a task with an oracle. ``result`` are the files that the task writes."""

    def __init__(self, task: SearchTask, oracle: Oracle, result: ResultFile) -> None:
        self.task = task
        self.oracle = oracle
        self._result = result
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time since the search was made."""
        return time.monotonic() - self._started

    def run(self) -> str | None:
        """Search; returns the limit that ended it before its end, None if none did.

        Raises Interrupted if it is stopped, with the best result by then written, CheckError if a check cannot be run
        or the result does not hold, and what the preflight raises.
        """
        try:
            stopped = self._until_spent(self._preflight)
            self._require_result(stopped)
            while True:
                if stopped is None:
                    self.task.begin()
                    stopped = self._search()
                self._require_result(stopped)  # the search may have been undone, and the budget spent before it began
                self._result.write()
                if not self._verify():
                    break
                stopped = None
        except (KeyboardInterrupt, errors.Interrupted) as stop:
            raise errors.Interrupted(self.task.progress, kept=self.task.rescue()) from stop
        finally:
            self.oracle.close()
        self._result.restore()
        return stopped

    def _require_result(self, stopped: str | None) -> None:
        if not self.task.has_result:
            raise errors.Interrupted(f"stopped by {stopped}")

    def _preflight(self) -> None:
        """The preflight, again if the person who is asked takes an answer back in it."""
        while True:
            try:
                return self.task.preflight()
            except UndoError:
                self.task.undo(self.oracle.undo())

    def _search(self) -> str | None:
        """Search within the budget. When a check cannot be run any more, the best so far is written."""
        try:
            return self._until_spent(self._search_to_the_end)
        except (errors.CheckError, errors.UsageError, errors.ModelError, OSError) as error:
            kept = self.task.rescue() or getattr(error, "kept", None)
            if not isinstance(error, errors.BiopsyError):
                raise errors.CheckError(str(error), kept=kept) from error
            raise type(error)(error.summary, details=error.details, kept=kept, next_steps=error.next_steps) from error

    def _verify(self) -> bool:
        try:
            return self.task.verify()
        except errors.CheckChanged as error:
            kept = self.task.rescue()
            raise errors.CheckChanged(error.summary, kept=kept, next_steps=error.next_steps) from error

    def _search_to_the_end(self) -> None:
        is_done = False
        while not is_done:
            try:
                is_done = self.task.search()
            except UndoError:  # the search is run again, with every other answer remembered
                if self.task.undo(self.oracle.undo()):
                    with self.oracle.budget.enforced():
                        self._preflight()

    def _until_spent(self, work: Callable[[], None]) -> str | None:
        """Do something; returns which limit ended it, None if none did."""
        try:
            work()
        except BudgetSpentError as spent:
            self.oracle.listener(events.Stopped(str(spent)))
            return str(spent)
        return None


@contextlib.contextmanager
def trials_of_file(
    output: Path | None, result: Trial, check: Check, restore: Callable[[], None]
) -> Iterator[Callable[[], Trial]]:
    """Trials of copies of the file that was written, beside it so that they find its weights.

    A check may change what it is given, so every trial gets a fresh copy; ``restore`` is called before one is made. A
    check that knows by itself where candidates stand is given the ``result`` there, and so is any if there is no file.
    """
    if output is None or not check.names_candidate or not output.is_file():
        yield lambda: result
        return
    with copies(output) as fresh:

        def trial() -> Trial:
            restore()
            return replace(result, place=fresh())

        yield trial
