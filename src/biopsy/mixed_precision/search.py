"""Searches for the layers that must be high: what to try next, told what passed before. They never check anything.

The sense is that of a reduction turned round. There a smaller model must still fail; here a model with fewer layers in
high precision must still pass. All layers high are known to pass, all low to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from biopsy.mixed_precision.cost import Cost
from biopsy.mixed_precision.plan import Layer
from biopsy.search.prefix import in_turn, shortest_prefix
from biopsy.search.rounds import Search
from biopsy.search.subset import minimize_subset_singly

Mode = Literal["minimal", "bisect", "linear"]
Direction = Literal["forward", "reverse"]


@dataclass(frozen=True)
class PrecisionProposal:
    """Layers to be high, by number, all others low; and words for the progress line."""

    high: tuple[int, ...]
    description: str


LayerSearch: TypeAlias = Search[PrecisionProposal, PrecisionProposal, None]
"""Yields rounds of one proposal, and is sent that if it passes. The last that passed is the result."""


def search_of(layers: Sequence[Layer], mode: Mode, direction: Direction, cost: Cost) -> LayerSearch:
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


def bisect(order: Sequence[int], side: str = "first") -> LayerSearch:
    """The fewest layers from one end of the network, by halves; log2(N) checks.

    If the failure comes and goes as more are raised, what is found passes, and one less fails.
    """
    yield from shortest_prefix(len(order), lambda length: _beginning(order, length, side))


def linear(order: Sequence[int], side: str = "first") -> LayerSearch:
    """One layer more each time, from one end of the network, until it passes."""
    yield from in_turn(_beginning(order, length, side) for length in range(1, len(order)))


def _beginning(order: Sequence[int], length: int, side: str) -> PrecisionProposal:
    return PrecisionProposal(tuple(sorted(order[:length])), f"the {side} {length} of {len(order)} layers high")


def minimal(order: Sequence[int]) -> LayerSearch:
    """Few layers of which none can be low: sets by halves, then one by one until none goes.

    ``order`` is of preference: what comes late is lowered first. About 2k log2(N/k) + 2k checks for k needed layers.
    """

    def propose(high: Sequence[int]) -> PrecisionProposal:
        return PrecisionProposal(tuple(sorted(high)), f"{len(high)} of {len(order)} layers high")

    yield from minimize_subset_singly(order, propose)


def usual_checks(count: int, mode: Mode) -> int:
    """Checks that a search takes if one layer is needed: what a person who waits is told."""
    halves = max(1, (count - 1).bit_length())
    return {"minimal": 2 * halves + 2, "bisect": halves, "linear": count}[mode]
