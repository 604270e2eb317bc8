"""Builds, each with its choices recorded and its result judged and sorted."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.judge import judge_any_failure
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.filesystem.write import write_whole
from biopsy.tactics.build_plan import BuildPlan
from biopsy.tactics.build_run import BuildRun, BuildRuns, record_before, with_built
from biopsy.tactics.builder import Built
from biopsy.tactics.difference import Build, build_of
from biopsy.tactics.record import TacticRecord, write_record
from biopsy.tactics.setting_changes import SettingChange
from biopsy.tactics.variations import Drawn, changes
from biopsy.text import first_line

_OUTCOMES = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}


@dataclass(frozen=True)
class BuildIteration:
    """One build and what was said of it."""

    number: int
    drawn: Drawn
    built: Built
    judged: Judged

    @property
    def change(self) -> SettingChange:
        """The settings that were built with."""
        return self.drawn.change


@dataclass
class BuildTally:
    """What many builds add up to. ``builds`` are the good and bad ones, with their choices."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    builds: list[Build] = field(default_factory=list)
    version: str = ""

    @property
    def runs(self) -> int:
        """How many builds were made."""
        return self.outcomes.total()


def build_repeatedly(
    plan: BuildPlan, runs: BuildRuns, tally: BuildTally, listener: events.Listener = events.ignore
) -> Generator[BuildIteration, None, None]:
    """Build, check and sort as often as the plan says; yields each iteration when it is over.

    A build that fails is INVALID, unless building is what is checked. Raises CheckError if a check cannot be run, and
    what ``runs`` raises.
    """
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(str(plan.until))
    order = changes(plan.variations, plan.seed, plan.until if isinstance(plan.until, int) else None)
    building = _Building(plan=plan, listener=listener, tally=tally)
    with closing(runs.runs(order)) as begun:
        for run in begun:
            iteration = building.concluded(run)
            yield iteration
            if iteration.judged.outcome is last:
                return


@dataclass(frozen=True, kw_only=True)
class _Building:
    """What every build of a plan needs: who listens, and what is counted."""

    plan: BuildPlan
    listener: events.Listener
    tally: BuildTally

    def concluded(self, run: BuildRun) -> BuildIteration:
        """Judge a build, and keep what it left."""
        judged = _judged(self.plan, run)
        self.listener(judged.event(run.number, "build"))
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                kept=f"nothing was concluded from iteration {run.number}",
                next_steps=[f"run it by hand: {run.line}"],
            )
        self._keep(run, judged)
        return BuildIteration(run.number, run.drawn, run.built, judged)

    def _keep(self, run: BuildRun, judged: Judged) -> None:
        """Write the record with what the check said, count it, and sort the artifacts."""
        plan = self.plan
        before = record_before(plan, run.number, run.drawn)
        record = replace(with_built(before, run.built, run.machine), outcome=_OUTCOMES.get(judged.outcome, "other"))
        if plan.record is not None:
            write_record(record, plan.record)
        for path, content in run.files.items():
            write_whole(path, [content])
        _count(record, judged, self.tally)
        for missing in plan.artifacts.sort(judged.outcome, run.number, ""):
            self.listener(events.Remark(f"the artifact {missing} was not there after iteration {run.number}"))


def _judged(plan: BuildPlan, run: BuildRun) -> Judged:
    built, evidence = run.built, run.evidence
    failure = built.failure
    if failure is not None:
        outcome = Outcome.REPRODUCES if plan.checks_building else Outcome.INVALID
        left = Evidence(status=1, output=failure.message.encode(), seconds=built.seconds)
        return Judged(outcome, f"it does not {failure.stage}: {failure.kind}: {first_line(failure.message)}", left)
    if evidence is None:
        return Judged(Outcome.PASSES, "it builds", Evidence(status=0, seconds=built.seconds))
    return judge_any_failure(evidence, plan.rules)


def _count(record: TacticRecord, judged: Judged, tally: BuildTally) -> None:
    tally.outcomes[judged.outcome] += 1
    tally.version = tally.version or record.version
    if judged.outcome in _OUTCOMES:
        name = f"iteration {record.iteration}"
        tally.builds.append(build_of(name, record, is_bad=judged.outcome is Outcome.REPRODUCES))


def remove(path: Path | None) -> None:
    """Remove what the last build has left."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
