"""What repeated builds show, as one record: how many were bad, and which choices go with that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from biopsy.checks.outcome import Outcome
from biopsy.quantities import count
from biopsy.tactics.build_plan import BuildPlan
from biopsy.tactics.building import BuildTally
from biopsy.tactics.difference import Build, Difference, difference
from biopsy.text import html_table, printable


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
