"""Minimizing a subset: few items of many that still hold together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from biopsy.search.drive import drive, first_that
from biopsy.search.prefix import shortest_prefix
from biopsy.search.removal import remove_each
from biopsy.search.rounds import Answer, Item, Proposed, Search


def minimize_subset(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed], *, at_least_one: bool = False
) -> Search[Proposed, Answer, list[Item]]:
    """Find a small subset of ``items`` that still holds; all of them are known to.

    One needed item after the other is found as the last of the shortest prefix that, with the needed ones found so
    far, still holds: by steps that double from the end, then by halves. k needed items among N cost about
    2k log2(N/k) + 2k rounds, as for QuickXplain (Junker 2004), and next to nothing where they are neighbours. What is
    returned has been seen to hold, whether or not the predicate is monotone; if it is, nothing can be left out.
    ``at_least_one``: no items at all are never proposed.
    """
    rest, needed = list(items), list[Item]()
    while rest:
        if needed or not at_least_one:
            answer = yield [propose(needed)]
            if answer is not None:
                return needed
        shortest, _ = yield from _shortest_with(needed, rest, propose)
        needed.insert(0, rest[shortest - 1])
        rest = rest[: shortest - 1]
    return needed


def _shortest_with(
    needed: Sequence[Item], rest: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    return shortest_prefix(len(rest), lambda length: propose([*rest[:length], *needed]), from_end=True)


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
