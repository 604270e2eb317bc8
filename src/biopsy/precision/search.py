"""Searches for the layers that must be high: what to try next, told what passed before. They never check anything.

The sense is that of a reduction turned round. There a smaller model must still fail; here a model with fewer layers in
high precision must still pass. All layers high are known to pass, all low to fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from biopsy.precision.cost import Cost
from biopsy.precision.plan import Layer
from biopsy.reduction.passes.minimal_subset import fewest

Mode = Literal["minimal", "bisect", "linear"]
Direction = Literal["forward", "reverse"]

_MOST_FORESEEN = 64
"""Proposals that are looked at to find some to check ahead."""


@dataclass(frozen=True)
class Proposal:
    """Layers to be high, by number, all others low; and words for the progress line."""

    high: tuple[int, ...]
    description: str


Search: TypeAlias = Generator[Proposal, bool, None]
"""Yields proposals and is sent whether each passes. The last that passed is the result."""


def search_of(layers: Sequence[Layer], mode: Mode, direction: Direction, cost: Cost) -> Search:
    """The search of a mode; deterministic, so that the same answers give the same proposals."""
    if mode == "minimal":
        return minimal(by_cost(layers, cost))
    order = [layer.number for layer in layers]
    if direction == "reverse":
        order.reverse()
    side = "first" if direction == "forward" else "last"
    return bisect(order, side) if mode == "bisect" else linear(order, side)


def by_cost(layers: Sequence[Layer], cost: Cost) -> list[int]:
    """The layers, those first that may stay high with the least regret; equal ones in the order of the network."""
    price: Callable[[Layer], int] = {
        "flops": lambda layer: layer.flops,
        "bytes": lambda layer: layer.bytes,
        "count": lambda layer: 0,
    }[cost]
    return [layer.number for layer in sorted(layers, key=price)]


def bisect(order: Sequence[int], side: str = "first") -> Search:
    """The fewest layers from one end of the network, by halves; log2(N) checks.

    If the failure comes and goes as more are raised, what is found passes, and one less fails.
    """
    low, high = 0, len(order)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield _beginning(order, middle, side)):
            high = middle
        else:
            low = middle


def linear(order: Sequence[int], side: str = "first") -> Search:
    """One layer more each time, from one end of the network, until it passes."""
    for count in range(1, len(order)):
        if (yield _beginning(order, count, side)):
            return


def _beginning(order: Sequence[int], count: int, side: str) -> Proposal:
    return Proposal(tuple(sorted(order[:count])), f"the {side} {count} of {len(order)} layers high")


def minimal(order: Sequence[int]) -> Search:
    """Few layers of which none can be low: sets by halves, then one by one until none goes.

    ``order`` is of preference: what comes late is lowered first. The halves are those of ``fewest``; about
    2k log2(N/k) + 2k checks for k needed layers.
    """

    def propose(high: Sequence[int]) -> Proposal:
        return Proposal(tuple(sorted(high)), f"{len(high)} of {len(order)} layers high")

    needed = yield from _sets(order, propose)
    rank = {number: place for place, number in enumerate(order)}
    before = None
    while needed != before:
        before = needed
        for number in sorted(needed, key=rank.__getitem__, reverse=True):
            without = [other for other in needed if other != number]
            if without and (yield propose(without)):
                needed = without


def _sets(order: Sequence[int], propose: Callable[[Sequence[int]], Proposal]) -> Generator[Proposal, bool, list[int]]:
    search: Generator[list[Proposal], Proposal | None, list[int]] = fewest(order, propose)
    answer: Proposal | None = None
    try:
        proposals = next(search)
        while True:
            passed = yield proposals[0]
            answer = proposals[0] if passed else None
            proposals = search.send(answer)
    except StopIteration as end:
        return list(end.value)


def foreseen(begin: Callable[[], Search], answers: Sequence[bool]) -> Iterator[Proposal]:
    """What a search will propose next, whatever the answers are: the nearest first."""
    waiting = deque([tuple(answers)])
    for _ in range(_MOST_FORESEEN):
        told = waiting.popleft()
        search = begin()
        try:
            proposal = next(search)
            for answer in told:
                proposal = search.send(answer)
        except StopIteration:
            pass
        else:
            yield proposal
            waiting += [(*told, False), (*told, True)]
        if not waiting:
            return


def usual_checks(count: int, mode: Mode) -> int:
    """Checks that a search takes if one layer is needed: what a person who waits is told."""
    halves = max(1, (count - 1).bit_length())
    return {"minimal": 2 * halves + 2, "bisect": halves, "linear": count}[mode]
