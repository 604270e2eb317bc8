"""Which of some items are needed, guessed by leaving parts of them out: many such questions can be asked at once.

A search that asks one question after the other learns one answer at a time, however many it foresees. What disjoint
parts come to, each left out of everything by itself, tells where what is needed stands. That is group testing
(R. Dorfman, The detection of defective members of large populations. Annals of Mathematical Statistics 14 (1943),
436-440), here for guesses alone: nothing that a search finds rests upon it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic

from biopsy.search.drive import Item

FEWEST = 16
"""Parts that are made at once, at least: fewer tell less than foreseen questions do, which take their places."""

_AT_FIRST = 9.0
"""Guesses that are taken to have come true before the first one."""

_LEAST_TRUST = 0.6
"""How often guesses must come true to be worth more than none."""


@dataclass(eq=False)
class Part(Generic[Item]):
    """Some items next to each other. ``is_needed``: whether any of them is, by themselves; None while nobody knows."""

    items: tuple[Item, ...]
    is_needed: bool | None = None


@dataclass(eq=False)
class _Run(Generic[Item]):
    """Items of which at least one is needed, as far as anybody knows. ``parts`` are left out in turn to find it."""

    items: tuple[Item, ...]
    parts: list[Part[Item]] = field(default_factory=list)
    found: frozenset[Item] = field(init=False)

    def __post_init__(self) -> None:
        self.found = frozenset(self.items)

    def restrict(self, left: Collection[Item]) -> None:
        """Forget items that are not ``left``."""
        self.items = tuple(item for item in self.items if item in left)
        self.found = frozenset(self.items)
        for part in self.parts:
            part.items = tuple(item for item in part.items if item in left)
        self.parts = [part for part in self.parts if part.items]

    def narrowed(self) -> list[_Run[Item]]:
        """Those of its parts that are needed, if all are known."""
        if any(part.is_needed is None for part in self.parts):
            return []
        return [_Run(part.items) for part in self.parts if part.is_needed]


class Scouting(Generic[Item]):
    """What is guessed to be needed of some items, all of which together hold.

    ``items`` stand in an order in which neighbours belong together, without those that are ``needed`` already.
    """

    def __init__(self, items: Sequence[Item], needed: Iterable[Item] = ()) -> None:
        self._runs = [_Run((item,)) for item in needed]
        if items:
            self._runs.append(_Run(tuple(items)))
        self._right, self._guesses = _AT_FIRST, _AT_FIRST + 1

    @property
    def trust(self) -> float:
        """How likely a guess comes true, above 1/2: 1/2 if they are worth nothing."""
        return max(0.5, self._right / self._guesses) if self._right / self._guesses >= _LEAST_TRUST else 0.5

    def parts(self, most: int) -> list[Part[Item]]:
        """Parts, at most so many, of which it is worth finding out whether any of their items is needed.

        Those that were given before, and of which nobody knows yet, come first.
        """
        open_runs = [run for run in self._runs if len(run.items) > 1]
        fresh = [run for run in open_runs if not run.parts]
        waiting = [part for run in open_runs for part in run.parts if part.is_needed is None]
        left = most - len(waiting)
        if left < FEWEST:
            return waiting[: max(0, most)]
        for place, run in enumerate(sorted(fresh, key=lambda run: -len(run.items))):
            count = min(len(run.items), left // (len(fresh) - place))
            if count > 1:
                borders = [number * len(run.items) // count for number in range(count + 1)]
                run.parts = [Part(run.items[start:end]) for start, end in pairwise(borders)]
                waiting += run.parts
                left -= count
        return waiting[:most]

    def learn(self, part: Part[Item], *, is_needed: bool) -> None:
        """Take into account what leaving out a part has come to."""
        part.is_needed = is_needed
        self._settle()

    def restrict(self, left: Collection[Item]) -> None:
        """Forget items that are not ``left``: it holds without them."""
        if all(run.found.issubset(left) for run in self._runs):
            return
        for run in self._runs:
            run.restrict(left)
        self._runs = [run for run in self._runs if run.items]
        self._settle()

    def _settle(self) -> None:
        """Go on with the parts of a run that are needed, once all are known; if none is by itself, it stays whole."""
        self._runs = [found for run in self._runs for found in (run.narrowed() or [run])]

    def guess(self, kept: frozenset[Item]) -> bool | None:
        """Whether some items hold: not without a run of which one is needed. None if they have only parts of runs."""
        if any(run.found.isdisjoint(kept) for run in self._runs):
            return False
        return True if all(run.found.issubset(kept) for run in self._runs) else None

    def came_true(self, *, right: bool) -> None:
        """Count a guess."""
        self._right, self._guesses = 0.9 * self._right + right, 0.9 * self._guesses + 1
