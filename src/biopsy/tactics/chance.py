"""How much of what was seen is chance: Fisher's exact test, Holm's correction, and how many builds would decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

MOST_BUILDS = 10_000
"""Where this many builds would not decide, no number is told."""


@dataclass(frozen=True)
class Table:
    """In how many builds a choice was made: ``bad`` of ``all_bad``, and ``good`` of ``all_good``."""

    bad: int
    all_bad: int
    good: int
    all_good: int

    @property
    def is_perfect(self) -> bool:
        """Whether it is in every bad build and in no good one."""
        return self.bad == self.all_bad > 0 and self.good == 0 < self.all_good

    @property
    def tends_to_fail(self) -> bool:
        """Whether it is more frequent in bad builds."""
        return self.bad * self.all_good > self.good * self.all_bad


def fisher(table: Table) -> float:
    """The chance of as many bad builds or more among those with a choice, if it had nothing to do with failing.

    One-sided, for given totals. R. A. Fisher, The logic of inductive inference. Journal of the Royal Statistical
    Society 98 (1935), 39-82.
    """
    with_it = table.bad + table.good
    builds = table.all_bad + table.all_good
    most = min(with_it, table.all_bad)
    ways = sum(
        comb(table.all_bad, bad) * comb(table.all_good, with_it - bad)
        for bad in range(max(table.bad, with_it - table.all_good), most + 1)
    )
    return ways / comb(builds, with_it)


def holm(chances: Sequence[float]) -> list[float]:
    """The same chances with regard to how many were looked at: below 0.05, one in twenty such analyses errs at all.

    S. Holm, A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6 (1979),
    65-70.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted = [1.0] * len(chances)
    greatest = 0.0
    for rank, place in enumerate(order):
        greatest = max(greatest, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = greatest
    return adjusted


def more_builds(table: Table, tests: int, level: float) -> int | None:
    """How many more builds decide if they go on as those in ``table`` did; None if no sensible number does.

    ``tests`` is how many choices are compared: the chance of the table must be below ``level / tests``.
    """
    builds = table.all_bad + table.all_good
    if not table.tends_to_fail:
        return None
    builds_then = builds
    while builds_then < MOST_BUILDS:
        builds_then += max(1, builds_then // 50)
        if fisher(_grown(table, builds_then / builds)) * tests <= level:
            return builds_then - builds
    return None


def _grown(table: Table, times: float) -> Table:
    return Table(*(round(count * times) for count in (table.bad, table.all_bad, table.good, table.all_good)))
