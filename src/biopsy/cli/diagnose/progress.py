"""What a diagnosis shows: a line for each question that is answered, one live line on a terminal, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.live_line import COLUMN
from biopsy.cli.progress import Progress, shows
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.diagnosis.facts import Diagnosis


class DiagnosisProgress(Progress):
    """Listens to a diagnosis."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log)
        self._step = events.StepStarted("", "", 0, 1)
        self._checks = 0

    @shows(events.StepStarted)
    def _show_started(self, event: events.StepStarted) -> None:
        self._step, self._checks = event, 0
        self._update(event.question)

    @shows(events.StepDone)
    def _show_done(self, event: events.StepDone) -> None:
        if event.outcome == "skipped" or (event.outcome == "stopped" and not event.seconds):
            self._console.detail(f"{event.name:<{COLUMN}} not asked: {event.answer}")
            return
        spent = f"{count(event.checks, 'check')} · {event.seconds:.1f} s" if event.checks else f"{event.seconds:.1f} s"
        told = {"failed": "no answer: ", "stopped": ""}.get(event.outcome, "")
        self.line(event.name, f"{told}{event.answer}   {spent}")

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._update(event.description)

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._checks += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")

    @shows(events.Measured)
    def _show_measured(self, event: events.Measured) -> None:
        self._update(f"{event.stage}: {event.done} of {event.total}")

    @shows(events.Resumed)
    def _show_resumed(self, event: events.Resumed) -> None:
        self.line("resumed", f"{count(event.runs, 'answer')} remembered in {event.journal}")

    def _update(self, doing: str) -> None:
        step = self._step
        checks = [count(self._checks, "check")] if self._checks else []
        parts = [f"question {step.number} of {step.total}", *checks, doing[:70]]
        self._live.update(step.name, " · ".join(parts), (step.number - 1) / step.total)


def say_result(console: Console, found: Diagnosis, following: Sequence[tuple[str, str]]) -> None:
    """The verdict, how sure it is, what avoids the failure, what was left open, and what to do next."""
    verdict = found.verdict
    word = {True: "FAILED", False: "PASSED", None: "UNKNOWN"}[found.failed]
    console.note("")
    console.say(f"{word} | {verdict.text}")
    if verdict.certainty is not None:
        console.say(f"{'sure':<{COLUMN}} {verdict.certainty}")
    for workaround in verdict.workarounds:
        console.say(f"{'workaround':<{COLUMN}} {workaround.text}")
        if workaround.line is not None:
            console.say(f"{'':<{COLUMN}} {workaround.line}")
    for question in verdict.not_tried:
        console.say(f"{'open':<{COLUMN}} {question}")
    console.note(f"{'evidence':<{COLUMN}} {found.folder} · {found.seconds:.1f} s")
    if following:
        console.note("")
    for number, (line, why) in enumerate(following):
        console.note(f"{'' if number else 'Next':<{COLUMN}} {why}:", f"{'':<{COLUMN}} {line}")
