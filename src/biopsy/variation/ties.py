"""Which parts of a model can only be changed together, such as the two axes that a product sums over."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain, combinations, islice
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)

_MOST_TOGETHER = 3
_MOST_GROUPS = 60
"""Groups of a few places that are tried for each anchor; then all together, without those that can be left out."""

_MOST_ASKED = 250
"""Questions about all anchors together, which cost some milliseconds each: what is not known by then is in no group."""

_MOST_LEFT_OUT = 24


def tied_groups(
    anchors: Sequence[Place], places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> list[tuple[Place, ...]]:
    """Small groups of ``places`` that can be changed, such that each anchor is in one, unless it is in none.

    ``places`` hold the anchors. Groups of up to three places are the smallest that there are; of larger ones no single
    place can be left out. Groups stand in the order of the anchors, their places in that of ``places``.
    """
    groups: dict[tuple[Place, ...], None] = {}
    asked = 0

    def counted(group: Sequence[Place]) -> bool:
        nonlocal asked
        asked += 1
        return asked <= _MOST_ASKED and is_valid(group)

    for anchor in anchors:
        if not any(anchor in group for group in groups) and (group := _group(anchor, places, counted)) is not None:
            groups[group] = None
    return list(groups)


def _group(
    anchor: Place, places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> tuple[Place, ...] | None:
    others = [place for place in places if place != anchor]
    few = chain.from_iterable(combinations(others, count) for count in range(_MOST_TOGETHER))
    found = next((group for group in islice(few, _MOST_GROUPS) if is_valid([anchor, *group])), None)
    if found is not None:
        return tuple(place for place in places if place == anchor or place in found)
    if not is_valid(places):
        return None
    kept = list(places)
    for place in others[::-1][:_MOST_LEFT_OUT]:
        without = [other for other in kept if other != place]
        if is_valid(without):
            kept = without
    return tuple(kept)
