"""What a search that runs a check shows: the check of now, the failure, the output of the first failure."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.check_output import say_output
from biopsy.cli.progress import Progress, shows
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console


class CheckProgress(Progress):
    """Shows checks as they run, and what ``add_shown_output`` asks for.

    ``head`` stands before the check that is running. ``needs`` says what counts only after several runs if the failure
    is flaky, such as "a release passes".
    """

    def __init__(self, console: Console, args: argparse.Namespace, *, head: str, needs: str) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._head = head
        self._needs = needs
        self._description = ""
        self._checks = 0
        self._shown_failure = False

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._description = event.description
        self._checks += 1
        self._live.update(self._head, f"{count(self._checks, 'check')} · {event.description[:70]}")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"{event.reason} · {event.seconds:.2f} s")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        rate = f"it fails in {event.failed} of {event.runs} runs"
        self.line("flaky", f"{rate}: {self._needs} if {event.needed} runs with it pass")

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._console.detail(f"  check {event.number}  {self._description[:100]}: {event.outcome}: {event.reason}")
        failed = event.outcome == "reproduced"
        if self._args.show_output or (failed and not self._shown_failure and not self._args.hide_fail_output):
            self._shown_failure = True
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)
