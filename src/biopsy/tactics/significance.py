"""How much of what was seen is chance: Fisher's exact test, Holm's correction, and how many builds would decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb, lgamma, log

import numpy as np
from numpy.typing import NDArray

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
    def can_tell(self) -> bool:
        """Whether the totals leave more than one way."""
        with_it = self.bad + self.good
        return 0 < with_it < self.all_bad + self.all_good and self.all_bad > 0 and self.all_good > 0

    @property
    def tends_to_fail(self) -> bool:
        """Whether it is more frequent in bad builds."""
        return self.bad * self.all_good > self.good * self.all_bad


@lru_cache(maxsize=4096)
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


def exchanged_in_blocks(tables: Sequence[Table]) -> float:
    """The same chance where builds were put in order by lot within blocks: a table for each block.

    Fisher's test takes all builds as exchangeable. If the lot was drawn block by block, only those of one block are,
    and a failure with the period of the blocks would look less like chance than it is. The exact distribution of the
    sum: each block's, convolved. J. Cornfield, A statistical problem arising from retrospective studies. Proceedings of
    the Third Berkeley Symposium 4 (1956), 135-148.
    """
    telling = tuple(table for table in tables if table.can_tell)
    if len(telling) <= 1:
        return fisher(telling[0]) if telling else 1.0
    ways, at = np.ones(1), 0
    for table in telling:
        least, shares = _shares(table)
        ways = np.convolve(ways, shares)
        at += table.bad - least
    return min(1.0, float(ways[at:].sum()))


@lru_cache(maxsize=4096)
def _shares(table: Table) -> tuple[int, NDArray[np.float64]]:
    """How likely each number of bad builds with the choice is, from the least that the totals allow."""
    with_it, builds = table.bad + table.good, table.all_bad + table.all_good
    least, most = max(0, with_it - table.all_good), min(with_it, table.all_bad)
    ways = [comb(table.all_bad, bad) * comb(table.all_good, with_it - bad) for bad in range(least, most + 1)]
    return least, np.array([way / comb(builds, with_it) for way in ways])


# How many more builds would decide


def more_builds(table: Table, tests: int, level: float) -> int | None:
    """How many more builds decide if they go on as those in ``table`` did; None if no sensible number does.

    ``tests`` is how many choices are compared: the chance of the table must be below ``level / tests``.
    """
    return more_for_all([table], table.all_bad + table.all_good, level / tests)


def more_for_all(tables: Sequence[Table], builds: int, level: float) -> int | None:
    """How many builds more than ``builds`` bring the chance of every table to ``level`` if all go on as they did.

    The number is sought by doubling, and then by halves. Counts are whole, so near the border a few more builds may
    decide less than a few fewer: what lies a little before is looked at one by one.
    """
    if not all(table.tends_to_fail for table in tables):
        return None
    sizes = _sizes(builds)

    def decides(place: int) -> bool:
        return all(_log_chance(_grown(table, sizes[place] / builds)) <= log(level) + _ROUNDING for table in tables)

    low, high = -1, 0
    while high < len(sizes) and not decides(high):
        low, high = high, len(sizes) if high == len(sizes) - 1 else min(2 * high + 1, len(sizes) - 1)
    while high < len(sizes) and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    near = range(max(0, high - _NEAR), min(high + 1, len(sizes)))
    return next((sizes[place] - builds for place in near if decides(place)), None)


_ROUNDING = 1e-9
"""Far above the error of sums of logarithms, far below what anybody would tell from the level."""

_NEAR = 64
"""Steps of 2 % before the border within which whole counts were seen to decide earlier, in 20,000 tables."""


@lru_cache(maxsize=64)
def _sizes(builds: int) -> tuple[int, ...]:
    """The numbers of builds that are thought of: each 2 % more than the last, up to ``MOST_BUILDS``."""
    found = [builds + max(1, builds // 50)]
    while found[-1] < MOST_BUILDS:
        found.append(found[-1] + max(1, found[-1] // 50))
    return tuple(found)


def _grown(table: Table, times: float) -> Table:
    return Table(*(round(count * times) for count in (table.bad, table.all_bad, table.good, table.all_good)))


def _log_chance(table: Table) -> float:
    """The logarithm of ``fisher``, for tables of any size: the first term, and others as far as they count."""
    with_it, builds = table.bad + table.good, table.all_bad + table.all_good
    first = _log_comb(table.all_bad, table.bad) + _log_comb(table.all_good, table.good) - _log_comb(builds, with_it)
    term, total = 1.0, 1.0
    for bad in range(table.bad, min(with_it, table.all_bad)):
        good = with_it - bad
        term *= (table.all_bad - bad) * good / ((bad + 1) * (table.all_good - good + 1))
        total += term
        if term < total * 1e-17:
            break
    return first + log(total)


def _log_comb(things: int, chosen: int) -> float:
    return _log_factorial(things) - _log_factorial(chosen) - _log_factorial(things - chosen)


@cache
def _log_factorial(number: int) -> float:
    return lgamma(number + 1)
