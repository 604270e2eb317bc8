"""Which parts of a model can only be changed together, such as the two axes that a product sums over."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)

_MOST_PLACES = 24
"""More are changed all together, or one by itself: what lies between would take too long to find."""


def tied_groups(
    anchors: Sequence[Place], places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> list[tuple[Place, ...]]:
    """For each anchor a smallest group of ``places`` that holds it and can be changed; none where there is no such one.

    ``places`` hold the anchors. No place of a group can be left out of it. Groups stand in the order of the anchors,
    each once.
    """
    groups = {group: None for anchor in anchors if (group := _group(anchor, places, is_valid))}
    return list(groups)


def _group(
    anchor: Place, places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> tuple[Place, ...] | None:
    if is_valid([anchor]):
        return (anchor,)
    if not is_valid(places):
        return None
    kept = list(places)
    for place in [place for place in reversed(places) if place != anchor][: _MOST_PLACES if len(places) > 1 else 0]:
        without = [other for other in kept if other != place]
        if is_valid(without):
            kept = without
    return tuple(kept)
