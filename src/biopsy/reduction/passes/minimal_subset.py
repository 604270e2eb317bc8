"""The search that passes over sets share: few items of many, found by halves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Proposed = TypeVar("Proposed")
Answer = TypeVar("Answer")


def fewest(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed], *, at_least_one: bool = False
) -> Generator[list[Proposed], Answer | None, list[Item]]:
    """Find a small subset of ``items`` that still reproduces; all of them are known to.

    One needed item after the other is found as the last of the shortest beginning that, with the needed ones found
    so far, still reproduces: by steps that double from the end, then by halves. k needed items among N cost about
    2k log2(N/k) + 2k checks, as for QuickXplain (Junker 2004), and next to nothing where they are neighbours. What is
    returned has been seen to reproduce, whether or not the failure is monotone; if it is, nothing can be left out.
    ``at_least_one``: no items at all are never proposed.
    """
    rest, needed = list(items), list[Item]()
    while rest:
        if needed or not at_least_one:
            answer = yield [propose(needed)]
            if answer is not None:
                return needed
        shortest = yield from _shortest_beginning(rest, needed, propose)
        needed.insert(0, rest[shortest - 1])
        rest = rest[: shortest - 1]
    return needed


def _shortest_beginning(
    rest: Sequence[Item], needed: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Generator[list[Proposed], Answer | None, int]:
    """The length of the shortest beginning of ``rest`` that reproduces with ``needed``."""
    low, high, step = 0, len(rest), 1
    while high - low > 1:
        middle = max(low + 1, high - step) if step else (low + high) // 2
        answer = yield [propose([*rest[:middle], *needed])]
        if answer is None:
            low, step = middle, 0
        else:
            high, step = middle, step * 2
    return high
