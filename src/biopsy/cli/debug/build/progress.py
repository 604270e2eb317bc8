"""What ``biopsy debug build`` shows while it builds."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.check_output import say_output
from biopsy.cli.progress import Progress, shows, time_left
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.tactics.build_plan import BuildPlan
    from biopsy.tactics.building import BuildIteration, BuildTally


class BuildProgress(Progress):
    """A line for each way to fail that was not met before, and for each remark of the engine."""

    def __init__(self, console: Console, args: argparse.Namespace, plan: BuildPlan) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._plan = plan
        self._shown: set[str] = set()

    def show_plan(self) -> None:
        """Say what is going to happen."""
        from biopsy.engines.registry import find_class

        until = self._plan.until
        if isinstance(until, int):
            often = count(until, "time")
        else:
            often = "until one passes" if until == "good" else "until one fails"
        self.line("build", f"{self._plan.model.path} with {self._plan.spec.text}, {often}")
        for variation in self._plan.variations:
            self.line("vary", f"{variation.key} = {', '.join(variation.values)}")
        if self._plan.variations:
            self.line("order", f"random, in blocks of all combinations: --seed {self._plan.seed}")
        if self._plan.artifact is None and not self._plan.checks_building:
            self.line("", f"{self._plan.spec.name} saves nothing: the check is given the model itself")
        if self._plan.record is not None and not find_class(self._plan.spec.name).capabilities.layers:
            self.line("", f"{self._plan.spec.name} does not tell its layers: the records hold its settings only")

    @shows(events.Remark)
    def show_remark(self, event: events.Remark) -> None:
        """Show a remark once."""
        if event.text not in self._shown:
            self._shown.add(event.text)
            super().show_remark(event)

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        failed = event.outcome not in ("passed",)
        is_new = failed and event.reason not in self._shown
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)
        if is_new:
            self._shown.add(event.reason)
            head = "fails" if event.outcome == "reproduced" else "other"
            self.line(head, f"build {event.number}: {event.reason}")

    def show_iteration(self, iteration: BuildIteration, tally: BuildTally) -> None:
        """A build has been checked and counted."""
        settings = iteration.change.text or self._plan.spec.text
        for remark in iteration.built.remarks:
            if remark not in self._shown:
                self._shown.add(remark)
                self.line("", remark)
        self._console.detail(f"  build {iteration.number}  {settings}: {word_for(iteration.judged.outcome.name)}")
        until, spent = self._plan.until, time.monotonic() - self._started
        left = f" · {time_left(spent / tally.runs * (until - tally.runs))}" if isinstance(until, int) else ""
        done = tally.runs / until if isinstance(until, int) else 0.0
        self._live.update("build", f"{count(tally.runs, 'build')} · {outcomes_text(tally)}{left}", done)


def word_for(name: str) -> str:
    """What users call the outcome of this name."""
    return {"PASSES": "good", "REPRODUCES": "bad"}.get(name, "other")


def outcomes_text(tally: BuildTally) -> str:
    """``13 good · 7 bad · 1 timed out``."""
    from biopsy.checks.outcome import Outcome

    good, bad = tally.outcomes[Outcome.PASSES], tally.outcomes[Outcome.REPRODUCES]
    rest = {outcome: times for outcome, times in tally.outcomes.items() if word_for(outcome.name) == "other"}
    others = [f"{times} {outcome.value}" for outcome, times in rest.items()]
    return " · ".join([f"{good} good", f"{bad} bad", *others])
