"""What ``debug version`` shows while it works: a line for each release."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.debug.check_progress import CheckProgress
from biopsy.cli.progress import shows
from biopsy.quantities import count
from biopsy.text import series, shortened

if TYPE_CHECKING:
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.blame.releases.span import ReleaseSpan
    from biopsy.cli.console import Console

_REASON = 90
"""Characters of a reason that stand in the line of a release."""


class VersionProgress(CheckProgress):
    """A line for each release that was asked, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, args, head="releases", needs="a release passes")

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

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"{_short(event.reason, 160)} · {event.seconds:.2f} s")

    @shows(events.InstallationDone)
    def _show_installed(self, event: events.InstallationDone) -> None:
        """What was made stands in the line of its release."""

    @shows(events.ReleaseTried)
    def _show_release(self, event: events.ReleaseTried) -> None:
        told = event.outcome in ("passes", "fails")
        reason = "" if told else f": {_short(event.reason)}"
        added = f"   (with {series(event.added)})" if event.added else ""
        self.line(event.version, f"{event.date:<10}  {event.outcome}{reason}{added}")


def _short(reason: str, most: int = _REASON) -> str:
    return shortened(" ".join(reason.split()), most)
