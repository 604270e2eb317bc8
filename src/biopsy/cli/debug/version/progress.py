"""What ``debug version`` shows while it works: a line for each release."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.check_output import say_output
from biopsy.cli.progress import Progress, shows
from biopsy.quantities import count
from biopsy.text import series, shortened

if TYPE_CHECKING:
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.blame.releases.span import ReleaseSpan
    from biopsy.cli.console import Console

_REASON = 90
"""Characters of a reason that stand in the line of a release."""


class VersionProgress(Progress):
    """A line for each release that was asked, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._description = ""
        self._checks = 0
        self._shown_failure = False

    def show_plan(self, question: ReleaseQuestion, span: ReleaseSpan) -> None:
        """Say what is going to happen."""
        check, found = question.check, span.releases
        python = f" for Python {check.python.version}" if check.python is not None else ""
        self.line(
            "releases",
            f"{count(len(found), 'release')} of {check.package}{python}: {found[0].version} to {found[-1].version}; "
            f"first {found[span.start].version}",
        )
        if check.spec is not None and check.is_own_run:
            others = f"; as installed: {check.yardstick}" if check.yardstick else ""
            self.line("varies", f"the release of {check.spec.text}{others}")

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._description = event.description
        self._checks += 1
        self._live.update("releases", f"{count(self._checks, 'check')} · {event.description[:70]}")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"{_short(event.reason, 160)} · {event.seconds:.2f} s")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        rate = f"it fails in {event.failed} of {event.runs} runs"
        self.line("flaky", f"{rate}: a release passes if {event.needed} runs with it pass")

    @shows(events.InstallationDone)
    def _show_installed(self, event: events.InstallationDone) -> None:
        """What was made stands in the line of its release."""

    @shows(events.ReleaseTried)
    def _show_release(self, event: events.ReleaseTried) -> None:
        told = event.outcome in ("passes", "fails")
        reason = "" if told else f": {_short(event.reason)}"
        added = f"   (with {series(event.added)})" if event.added else ""
        self.line(event.version, f"{event.date or '':<10}  {event.outcome}{reason}{added}")

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._console.detail(f"  check {event.number}  {self._description[:100]}: {event.outcome}: {event.reason}")
        failed = event.outcome == "reproduced"
        if self._args.show_output or (failed and not self._shown_failure and not self._args.hide_fail_output):
            self._shown_failure = True
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)


def _short(reason: str, most: int = _REASON) -> str:
    return shortened(" ".join(reason.split()), most)
