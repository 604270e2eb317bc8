"""Builds, each with its choices recorded and its result judged and sorted; and what they show together."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import events
from biopsy.checks.judge import judge_any_failure
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.processes.writing import write_whole
from biopsy.questions.builds.difference import Build, Difference, build_of, difference
from biopsy.questions.builds.one_build import BuildPlan, BuildRun, BuildRuns, Built, record_before, with_built
from biopsy.questions.builds.record import write_record
from biopsy.questions.builds.settings import Drawn, SettingChange, changes
from biopsy.session.trial import cannot_run
from biopsy.text import count, first_line, html_table, printable

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
    with closing(runs.runs(order)) as begun:
        for run in begun:
            judged = _judged(plan, run)
            listener(judged.event(run.number, "build"))
            if judged.outcome is Outcome.INFRASTRUCTURE:
                raise cannot_run(judged, run.line, kept=f"nothing was concluded from iteration {run.number}")
            _keep(plan, run, judged, tally)
            for missing in plan.artifacts.sort(judged.outcome, run.number, ""):
                listener(events.Remark(f"the artifact {missing} was not there after iteration {run.number}"))
            yield BuildIteration(run.number, run.drawn, run.built, judged)
            if judged.outcome is last:
                return


def _keep(plan: BuildPlan, run: BuildRun, judged: Judged, tally: BuildTally) -> None:
    """Write the record of a build with what the check said, and count it."""
    record = with_built(record_before(plan, run.number, run.drawn), run.built, run.machine)
    record = replace(record, outcome=_OUTCOMES.get(judged.outcome, "other"))
    if plan.record is not None:
        write_record(record, plan.record)
    for path, content in run.files.items():
        write_whole(path, [content])
    tally.outcomes[judged.outcome] += 1
    tally.version = tally.version or record.version
    if judged.outcome in _OUTCOMES:
        is_bad = judged.outcome is Outcome.REPRODUCES
        tally.builds.append(build_of(f"iteration {run.number}", record, is_bad=is_bad))


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


def remove(path: Path | None) -> None:
    """Remove what the last build has left."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


# What repeated builds show, as one record: how many were bad, and which choices go with that.


@dataclass(frozen=True, kw_only=True)
class BuildFindings:
    """What many builds of one model show.

    ``engine`` is the spec that was built with, ``version`` that of the engine. ``outcomes`` counts the builds by what
    the check said of them; ``builds`` are the good and bad ones with their choices, in order. ``difference`` says what
    bad builds have in common that good ones have not, and whether that is chance. ``seconds`` is wall time.
    """

    engine: str
    version: str
    outcomes: Mapping[Outcome, int]
    builds: tuple[Build, ...]
    difference: Difference
    seconds: float

    @property
    def runs(self) -> int:
        """How many builds were made."""
        return sum(self.outcomes.values())

    @property
    def good(self) -> int:
        """How many of them passed."""
        return self.outcomes.get(Outcome.PASSES, 0)

    @property
    def bad(self) -> int:
        """How many of them failed; those that the check could say nothing about are neither."""
        return self.outcomes.get(Outcome.REPRODUCES, 0)

    def __repr__(self) -> str:
        decided = self.difference.decided
        cause = f"; {decided[0].told.text} goes with failing" if decided else ""
        return f"<BuildFindings of {printable(self.engine)}: {self._counted}{printable(cause)}>"

    def _repr_html_(self) -> str:
        rows = [
            (group.told.text, f"{group.table.bad} of {self.bad}", f"{group.table.good} of {self.good}",
             f"{group.adjusted:.2g}", "yes" if group in self.difference.decided else "no")
            for group in self.difference.groups
        ]  # fmt: skip
        head = ["choice", "in bad builds", "in good builds", "chance", "decided"]
        return html_table(f"{self.engine}: {self._counted}", head, rows)

    @property
    def _counted(self) -> str:
        others = self.runs - self.good - self.bad
        unclear = f", {others} neither" if others else ""
        return f"{self.bad} of {count(self.runs, 'build')} bad, {self.good} good{unclear}"


def findings_of(plan: BuildPlan, tally: BuildTally, seconds: float) -> BuildFindings:
    """What was counted while a plan was carried out."""
    return BuildFindings(
        engine=plan.spec.text,
        version=tally.version,
        outcomes=dict(tally.outcomes),
        builds=tuple(tally.builds),
        difference=difference(tally.builds),
        seconds=seconds,
    )
