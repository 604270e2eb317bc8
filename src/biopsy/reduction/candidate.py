"""Candidates, which passes propose, and the nodes that one needs besides its own to stand alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

from biopsy.model.index import ModelIndex
from biopsy.model.slice import Subset
from biopsy.search.drive import Search


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


def uncuttable_sources(
    index: ModelIndex,
    tensors: Iterable[int],
    kept: Container[int],
    can_cut: Callable[[int], bool],
) -> set[int]:
    """The nodes outside ``kept`` that compute those of these tensors that cannot be cut, and what they need in turn."""
    waiting, sources = list(tensors), set[int]()
    while waiting:
        tensor = waiting.pop()
        source = index.producer.get(tensor)
        if source is not None and source not in kept and source not in sources and not can_cut(tensor):
            sources.add(source)
            waiting.extend(index.node_reads[source])
    return sources


class Rings:
    """The nodes to add so that the type of every end of a candidate is known.

    The first reader of an end of unknown type is added, so that the tensor is no end any more. These readers are a ring
    around the candidate. They bring along the nodes that they cannot be cut from, and have ends of their own: the next
    ring. Each node is looked at once, however many rings there are. ``subset`` is the candidate, with the nodes that
    it cannot be cut from.
    """

    def __init__(
        self,
        index: ModelIndex,
        subset: Subset,
        bypassed: Sequence[tuple[int, int]],
        can_cut: Callable[[int], bool],
        is_told: Callable[[int], bool],
    ) -> None:
        self._index = index
        self._subset = subset
        self._bypassed = frozenset(node for node, _ in bypassed)
        self._can_cut = can_cut
        self._is_told = is_told

    @property
    def first(self) -> set[int]:
        """The first ring."""
        return self._readers(self._subset.sinks) - self._subset.kept

    def all(self) -> set[int]:
        """The nodes of all rings, and what they bring along.

        It ends early at a ring that meets a bypass: the candidate must be rewired before its ends are known again.
        """
        index, outputs = self._index, frozenset(self._index.outputs)
        kept, read = set(self._subset.kept), set(self._subset.read)
        ring = self.first
        while ring:
            kept |= ring
            reads = chain.from_iterable(map(index.node_reads.__getitem__, ring))
            taken = uncuttable_sources(index, reads, kept, self._can_cut)
            new = ring | taken
            if self._bypassed and not self._bypassed.isdisjoint(
                {*new, *(index.producer.get(tensor) for node in new for tensor in index.node_reads[node])}
            ):
                break
            kept |= taken
            read.update(tensor for node in new for tensor in index.node_reads[node])
            written = (tensor for node in new for tensor in index.node_writes[node])
            ring = self._readers(tensor for tensor in written if tensor in outputs or tensor not in read) - kept
        return kept - self._subset.kept

    def _readers(self, ends: Iterable[int]) -> set[int]:
        consumers = self._index.consumers
        return {consumers[end][0] for end in ends if end in consumers and not self._is_told(end)}
