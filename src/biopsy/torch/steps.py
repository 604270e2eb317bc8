"""Questions that are asked one after the other: each is told when it begins, and when it has an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from biopsy import errors, events
from biopsy.diagnosis.context import TimeUpError
from biopsy.diagnosis.facts import Outcome, StepReport
from biopsy.torch.accusation import Accusation
from biopsy.torch.time_left import TimeLeft

_Answer = TypeVar("_Answer")

_OPEN = "open: the time was over"

_ANSWERS = {"passes": "yes", "tolerance": "no, by rounding alone", "unknown": "nobody can tell"}
"""What a question is answered with that ends in a verdict, whose own text follows: to all others the answer is no."""


class BlamedError(Exception):
    """The verdict is known: no further question is asked about whose fault it is."""

    def __init__(self, accusation: Accusation) -> None:
        super().__init__(accusation.text)
        self.accusation = accusation


class Steps:
    """Asks ``questions``, which are known by their names, and keeps what became of each in ``reports``.

    ``left`` is the time for all of them.
    """

    def __init__(self, questions: Mapping[str, str], listener: events.Listener, left: TimeLeft) -> None:
        self._questions = questions
        self._listener = listener
        self.left = left
        self.reports: list[StepReport] = []

    def ask(self, name: str, answer: Callable[[], tuple[_Answer, str]]) -> _Answer:
        """What ``answer`` gives besides its line. Raises what it raises, and tells that, too.

        Raises TimeUpError, too, if the time was over before.
        """
        question, began = self._questions[name], time.monotonic()
        number = list(self._questions).index(name) + 1
        self._listener(events.StepStarted(name, question, number, len(self._questions)))
        outcome: Outcome = "failed"
        line = ""
        try:
            self.left.require()
            found, line = answer()
            outcome = "done"
        except BlamedError as known:
            outcome, line = "done", _ANSWERS.get(known.accusation.blame, "no")
            raise
        except TimeUpError:
            outcome, line = "stopped", _OPEN
            raise
        except errors.BiopsyError as error:
            line = error.summary
            if self.left.is_over:
                outcome, line = "stopped", _OPEN
            raise
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            seconds = time.monotonic() - began
            self.reports.append(StepReport(name=name, question=question, outcome=outcome, answer=line, seconds=seconds))
            self._listener(events.StepDone(name=name, outcome=outcome, answer=line, seconds=seconds, checks=0))
        return found

    @property
    def open(self) -> list[str]:
        """The names of the questions that the time did not suffice for; none if it sufficed."""
        if all(report.outcome != "stopped" for report in self.reports):
            return []
        asked = {report.name for report in self.reports if report.outcome != "stopped"}
        return [name for name in self._questions if name not in asked]
