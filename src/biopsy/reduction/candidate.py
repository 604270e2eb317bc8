"""What a pass proposes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from biopsy.search.rounds import Search


@dataclass(frozen=True)
class Candidate:
    """A smaller model, as decisions about the original.

    ``nodes`` are the numbers of the nodes it keeps, ascending. Nodes that are gone are cut: what they computed becomes
    an input or a constant. ``bypassed`` are those whose readers read one of the node's own inputs instead, as
    (node, tensor) in the order of the nodes. ``sample`` is the input sample whose values constants have that are not
    the same in all of them. ``turned`` are cuts in the other form than the policy gives them: fed instead of frozen, or
    frozen instead of fed.
    """

    nodes: tuple[int, ...]
    bypassed: tuple[tuple[int, int], ...] = ()
    sample: int = 0
    turned: tuple[int, ...] = ()

    @cached_property
    def kept(self) -> frozenset[int]:
        """``nodes``, to look one up."""
        return frozenset(self.nodes)

    @property
    def size(self) -> int:
        """Nodes left: what a reduction makes small."""
        return len(self.nodes)

    def without(self, gone: Iterable[int]) -> Candidate:
        """The candidate without some nodes: what they computed is cut."""
        left_out = frozenset(gone)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in left_out))


@dataclass(frozen=True)
class Proposal:
    """A candidate with words for the progress line, such as "nodes 1-250 of 500"."""

    candidate: Candidate
    description: str


NodeSearch: TypeAlias = Search[Proposal, Candidate, None]
"""A pass at work: it proposes candidates, and is sent the one that reproduces, closed, or None."""
