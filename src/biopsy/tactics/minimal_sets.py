"""All smallest sets of things that are enough: each one that is found, with a part of it left out, leads to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)
Part = TypeVar("Part")


def minimal_sets(
    items: Sequence[Item], one_of: Callable[[Sequence[Item]], list[Item] | None], most: int
) -> tuple[list[list[Item]], bool]:
    """Every set of ``items`` that is enough and of which nothing can be left out; and whether all of them were found.

    ``one_of`` gives such a set within some items, None if not even all of those are enough: a set with more items than
    one that is enough must be enough too. The search ends with ``most`` sets. Without a part of every set found so far,
    either nothing is enough any more, or what is found is new: R. Reiter, A theory of diagnosis from first principles.
    Artificial Intelligence 32 (1987), 57-95.
    """
    found: list[list[Item]] = []
    seen: set[frozenset[Item]] = {frozenset()}
    waiting: deque[frozenset[Item]] = deque(seen)
    while waiting:
        without = waiting.popleft()
        chosen = next((known for known in found if without.isdisjoint(known)), None)
        if chosen is None:
            if len(found) >= most:
                return found, False
            chosen = one_of([item for item in items if item not in without])
            if chosen is None:
                continue
            found.append(chosen)
        for item in chosen:
            more = without | {item}
            if more not in seen:
                seen.add(more)
                waiting.append(more)
    return found, True


def shortest(sets: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """Those with the fewest items."""
    least = min(map(len, sets), default=0)
    return [list(one) for one in sets if len(one) == least]
