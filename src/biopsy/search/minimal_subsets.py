"""All minimal subsets that hold: each one that is found, with an item of it left out, leads to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from biopsy.search.rounds import Item, Search
from biopsy.search.subset import minimal_subset

Part = TypeVar("Part")


def minimal_subsets(items: Sequence[Item], most: int) -> Search[list[Item], list[Item], tuple[list[list[Item]], bool]]:
    """Find every subset of ``items`` that holds and of which nothing can be left out; and whether all were found.

    The predicate must be monotone: a subset with more items than one that holds must hold too. The search ends with
    ``most`` subsets. Without an item of every subset found so far, either nothing holds any more, or what is found is
    new: R. Reiter, A theory of diagnosis from first principles. Artificial Intelligence 32 (1987), 57-95.
    """
    subsets: list[list[Item]] = []
    seen: set[frozenset[Item]] = {frozenset()}
    waiting: deque[frozenset[Item]] = deque(seen)
    while waiting:
        without = waiting.popleft()
        subset = next((known for known in subsets if without.isdisjoint(known)), None)
        if subset is None:
            if len(subsets) >= most:
                return subsets, False
            subset = yield from minimal_subset([item for item in items if item not in without])
            if subset is None:
                continue
            subsets.append(subset)
        extended = [without | {item} for item in subset]
        waiting += [more for more in extended if more not in seen]
        seen.update(extended)
    return subsets, True


def shortest(subsets: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """Those with the fewest items."""
    least = min(map(len, subsets), default=0)
    return [list(subset) for subset in subsets if len(subset) == least]
