"""Minimizing a subset: few items of many that still hold together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from biopsy.search.drive import drive, first_that
from biopsy.search.prefix import Likelihood, least, near
from biopsy.search.removal import remove_each
from biopsy.search.rounds import Answer, Item, Proposed, Search

_NO_MORE = 0.3
"""How likely it is that no more items are needed than those found: by trial, on few and many that are needed."""


def minimize_subset(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed], *, at_least_one: bool = False
) -> Search[Proposed, Answer, list[Item]]:
    """Find a small subset of ``items`` that still holds; all of them are known to.

    One needed item after the other is found as the last of the shortest prefix that, with the needed ones found so
    far, still holds, as QuickXplain does (Junker 2004); what is known of distances decides where each search begins.
    k needed items among N cost about k log2(N/k) + 3k rounds, less where they are neighbours. What is returned has
    been seen to hold, whether or not the predicate is monotone; if it is, nothing can be left out. ``at_least_one``:
    no items at all are never proposed.
    """
    if not items or (not at_least_one and (yield [propose([])]) is not None):
        return []
    rest, needed, neighbours = list(items), list[Item](), 0
    while rest:
        likely = _likely_left(len(rest), neighbours, len(needed))
        left, _ = yield from least(-1 if needed else 0, len(rest), _with(needed, rest, propose), likely)
        if not left:
            break
        neighbours += left == len(rest)
        needed.insert(0, rest[left - 1])
        rest = rest[: left - 1]
    return needed


def _with(
    needed: Sequence[Item], rest: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Callable[[int], Proposed]:
    kept = tuple(needed)
    return lambda length: propose([*rest[:length], *kept])


def _likely_left(length: int, neighbours: int, found: int) -> Likelihood:
    """How likely it is that at most so many items of the rest must be left with those found.

    The next needed item is the last of the rest as often as it was with those ``found``; or no more is needed; or it is
    anywhere, near the end rather than far away.
    """
    last = (1 + neighbours) / (3 + 2 * found)

    def likely(left: int) -> float:
        if left < 0:
            return 0.0
        nearer = last + (1 - last) * near(length - left, length)
        return 1 - (1 - _NO_MORE) * nearer if left < length else 1.0

    return likely


def minimize_subset_singly(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Search[Proposed, Answer, list[Item]]:
    """Minimize a subset until no single item can be left out (1-minimal), whether or not the predicate is monotone.

    ``items`` stand in the order of preference: the later go first.
    """
    needed = yield from minimize_subset(items, propose)
    before = None
    while needed != before:
        before = needed
        needed = yield from remove_each(needed[::-1], needed, propose)
    return needed


def minimal_subset(items: Sequence[Item]) -> Search[list[Item], list[Item], list[Item] | None]:
    """Find a subset, at least one item, of a monotone predicate of which no single item can be left out.

    None if not even all items hold.
    """
    if not items or (yield [list(items)]) is None:
        return None
    needed = yield from minimize_subset(items, list, at_least_one=True)
    return (yield from remove_each(needed, needed, list))


def minimized(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A small subset of ``items``, at least one, that holds as all of them do; in their order."""
    search: Search[list[Item], list[Item], list[Item]] = minimize_subset(items, list, at_least_one=True)
    return drive(search, first_that(holds))
