"""Predicates over subsets of numbers, monotone and arbitrary, that know what they were asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable

from hypothesis import strategies as st


class Predicate:
    """Holds of some subsets; ``asked`` are those that it was asked about, in their order."""

    def __init__(self, holds: Callable[[frozenset[int]], bool]) -> None:
        self._holds = holds
        self.asked: list[frozenset[int]] = []

    def __call__(self, subset: Iterable[int]) -> bool:
        self.asked.append(frozenset(subset))
        return self._holds(self.asked[-1])

    def of(self, subset: Iterable[int]) -> bool:
        """Whether it holds, not counted as asked."""
        return self._holds(frozenset(subset))


def needing(wanted: Collection[int]) -> Predicate:
    """Monotone: holds of every superset of some numbers."""
    return Predicate(frozenset(wanted).issubset)


def arbitrary(count: int, seed: int) -> Predicate:
    """Holds of all numbers, not of none, and of half of what is between, whatever is asked first."""

    def holds(subset: frozenset[int]) -> bool:
        drawn = random.Random(f"{seed} {sorted(subset)}").random() < 0.5
        return len(subset) == count or (drawn and bool(subset))

    return Predicate(holds)


def counts_and_wanted(most: int, most_wanted: int) -> st.SearchStrategy[tuple[int, set[int]]]:
    """A number of items, and some of them that are needed."""
    return st.integers(1, most).flatmap(
        lambda count: st.tuples(
            st.just(count), st.sets(st.integers(0, count - 1), min_size=1, max_size=min(count, most_wanted))
        )
    )
