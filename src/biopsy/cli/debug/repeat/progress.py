"""What ``biopsy debug repeat`` shows while the command runs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.check_output import say_output
from biopsy.cli.progress import Progress, time_left
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.checks.outcome import Outcome
    from biopsy.checks.repetition import RepeatedRun, RunTally
    from biopsy.cli.console import Console
    from biopsy.session.machines import OtherMachines


class RepeatProgress(Progress):
    """What is shown while the command runs: a line for each new kind of failure, and one live line on a terminal."""

    def __init__(self, console: Console, args: argparse.Namespace, machines: OtherMachines | None = None) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._machines = machines
        self._missing: set[Path] = set()

    def show_plan(self, line: str) -> None:
        """Say what is going to happen."""
        until = self._args.until
        often = {"good": "until it passes", "bad": "until it fails"}.get(until) or count(until, "time")
        at_once = f", {self._args.jobs} at once" if self._args.jobs > 1 else ""
        self.line("repeat", f"{often}{at_once}: {line}")
        if self._machines is not None:
            from biopsy.session.machines import tell_of_machines

            tell_of_machines(self._machines, self)
        for file in self._args.artifacts:
            if file.exists():
                self(events.Remark(f"{file} exists already: it counts as a file of iteration 0"))

    def show_run(self, number: int, line: str) -> None:
        """A run is about to begin."""
        self.keep(events.Checking(number=number, stage="repeat", description="run", line=line))
        if number == 0:
            self._live.update("repeat", "the first run")

    def show_outcome(self, run: RepeatedRun, tally: RunTally, missing: list[Path], *, is_new: bool) -> None:
        """A run has ended, and was counted."""
        judged = run.judged
        seconds = judged.evidence.seconds
        self.keep(judged.event(run.number, "repeat"))
        if judged.evidence.remark:
            self(events.Remark(judged.evidence.remark))
        self._console.detail(f"  run {run.number}  {word_for(judged.outcome)}: {judged.reason} · {seconds:.2f} s")
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, judged.evidence.output, whole=self._args.show_output)
        if is_new:
            self.line("fails", f"iteration {run.number}: {judged.reason} · {seconds:.2f} s")
        for file in set(missing) - self._missing:
            self._missing.add(file)
            self(events.Remark(f"the artifact {file} was not there after iteration {run.number}"))
        if tally.runs != self._args.until:
            until = self._args.until
            done = tally.runs / until if isinstance(until, int) else 0.0
            self._live.update("repeat", self._progress(tally), done)

    def _progress(self, tally: RunTally) -> str:
        spent = time.monotonic() - self._started
        until = self._args.until
        if not isinstance(until, int):
            return f"{outcomes_text(tally)}{self._use} · {spent / tally.runs:.2g} s each"
        left = spent / tally.runs * (until - tally.runs)
        return f"{tally.runs} of {until} · {outcomes_text(tally)}{self._use} · {time_left(left)}"

    @property
    def _use(self) -> str:
        """What other machines are at; "" if there are none."""
        if self._machines is None:
            return ""
        use = self._machines.use
        return f" · {use.running} running on {count(use.machines, 'machine')}"


def word_for(outcome: Outcome) -> str:
    """There is no original here whose failure could be reproduced: a run that fails fails."""
    return "failed" if outcome.name == "REPRODUCES" else outcome.value


def outcomes_text(tally: RunTally) -> str:
    """``13 passed · 7 failed · 1 timed out``."""
    return " · ".join(
        [f"{tally.passed} passed", f"{tally.failed} failed"]
        + [f"{times} {outcome.value}" for outcome, times in tally.undecided.items()]
    )
