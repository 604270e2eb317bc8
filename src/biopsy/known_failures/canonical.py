"""One order of the vertices of a pattern, whatever order they came in: that of isomorphic patterns is the same.

Colour refinement (Weisfeiler and Leman 1968) tells vertices apart by what is around them. What it leaves alike is
parted into components that only touch vertices told apart already: these are ordered each by itself, so that many
equal branches cost no more than one of them each. A component that stays alike is tried with each vertex of one
colour made special in turn, and the least description counts (McKay 1981, without his search for automorphisms). That
may take for ever, so the work has a limit.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biopsy.known_failures.pattern import Pattern, Tensor, own_text

MOST_WORK = 400_000
"""Visits of edges: a second or so."""


class TooSymmetricError(Exception):
    """The limit was reached: parts of the pattern are alike in too many ways."""


@dataclass(frozen=True)
class CanonicalOrder:
    """The places of vertices, as they are written. ``exact``: isomorphic patterns get the same.

    ``counts`` is the same for isomorphic patterns in any case, and seldom for others: how often which vertices meet.
    """

    places: list[int]
    exact: bool
    counts: str = ""


def canonical_order(pattern: Pattern, most_work: int = MOST_WORK) -> CanonicalOrder:
    """The order in which a pattern is written: readers behind what they read."""
    ordering = _Ordering(pattern, most_work)
    everything = list(range(len(pattern.vertices)))
    try:
        ranked = ordering.ordered(everything, ordering.first_colours())
    except TooSymmetricError:
        colours = ordering.colours()
        ranked = sorted(everything, key=colours.__getitem__)
        return CanonicalOrder(_readable(pattern, ranked), exact=False, counts=_counts(pattern, colours))
    return CanonicalOrder(_readable(pattern, ranked), exact=True)


def _counts(pattern: Pattern, colours: dict[int, int]) -> str:
    own = sorted((colours[place], own_text(one)) for place, one in enumerate(pattern.vertices))
    edges = sorted((colours[edge.source], colours[edge.target], edge.role) for edge in pattern.edges())
    return repr((own, edges))


class _Ordering:
    """The search for the order. Colours are whole numbers, which mean the same in isomorphic patterns."""

    def __init__(self, pattern: Pattern, most_work: int) -> None:
        self._pattern = pattern
        self._left = most_work
        edges = list(pattern.edges())
        number_of = {role: number for number, role in enumerate(sorted({edge.role for edge in edges}))}
        size = len(pattern.vertices)
        self._into: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        for edge in edges:
            self._into[edge.target].append((number_of[edge.role], edge.source))
            self._out[edge.source].append((number_of[edge.role], edge.target))

    def first_colours(self) -> dict[int, int]:
        """By what each vertex says itself, and how far it is from where the pattern begins and ends."""
        ahead, behind = _depths(self._into), _depths(self._out)
        told = [(own_text(one), ahead[place], behind[place]) for place, one in enumerate(self._pattern.vertices)]
        number_of = {text: number for number, text in enumerate(sorted(set(told)))}
        return {place: number_of[text] for place, text in enumerate(told)}

    def ordered(self, among: Sequence[int], colours: dict[int, int]) -> list[int]:
        """The order of some vertices; what they have to do with others is told by their ``colours``."""
        colours = self._refined(among, colours)
        sizes = Counter(colours[place] for place in among)
        alone = sorted((place for place in among if sizes[colours[place]] == 1), key=colours.__getitem__)
        rest = [place for place in among if sizes[colours[place]] > 1]
        if not rest:
            return alone
        parts = self._components(rest)
        if len(parts) == 1 and not alone:
            return self._individualized(rest, colours, sizes)
        orders = [self.ordered(part, {place: colours[place] for place in part}) for part in parts]
        orders.sort(key=lambda order: self._description(order, colours))
        return [*alone, *(place for order in orders for place in order)]

    def colours(self) -> dict[int, int]:
        """The colours of all vertices after refinement alone, whatever work that is."""
        self._left = 1 << 60
        return self._refined(range(len(self._into)), self.first_colours())

    def _individualized(self, among: list[int], colours: dict[int, int], sizes: Counter[int]) -> list[int]:
        """The least of the orders in which one vertex of the first smallest colour comes first."""
        chosen = min(sizes, key=lambda colour: (sizes[colour], colour))
        orders = []
        for place in (each for each in among if colours[each] == chosen):
            special = {each: 2 * colour for each, colour in colours.items()}
            special[place] -= 1
            orders.append(self.ordered(among, special))
        return min(orders, key=lambda order: self._description(order, colours))

    def _refined(self, among: Sequence[int], colours: dict[int, int]) -> dict[int, int]:
        """Colours that tell apart whatever has other neighbours, in the order of the colours before."""
        inside = set(among)
        into = {place: [(role, one) for role, one in self._into[place] if one in inside] for place in among}
        out = {place: [(role, one) for role, one in self._out[place] if one in inside] for place in among}
        cost = len(among) + sum(map(len, into.values())) + sum(map(len, out.values()))
        count = len({colours[place] for place in among})
        while True:
            self._spend(cost)
            told = {
                place: (
                    colours[place],
                    sorted((role, colours[one]) for role, one in into[place]),
                    sorted((role, colours[one]) for role, one in out[place]),
                )
                for place in among
            }
            unlike = sorted(set(map(_frozen, told.values())))
            number_of = {each: number for number, each in enumerate(unlike)}
            colours = {place: number_of[_frozen(each)] for place, each in told.items()}
            if len(unlike) == count:
                return colours
            count = len(unlike)

    def _components(self, among: Iterable[int]) -> list[list[int]]:
        left, found = set(among), []
        while left:
            waiting = [left.pop()]
            part = []
            while waiting:
                place = waiting.pop()
                part.append(place)
                near = {one for _, one in (*self._into[place], *self._out[place])} & left
                left -= near
                waiting += near
            found.append(part)
        return found

    def _description(self, order: Sequence[int], colours: dict[int, int]) -> tuple[object, ...]:
        """All that there is to tell of some vertices in this order: equal only if they are isomorphic."""
        self._spend(len(order))
        at = {place: number for number, place in enumerate(order)}
        edges = sorted((at[place], role, at[one]) for place in order for role, one in self._into[place] if one in at)
        return tuple(colours[place] for place in order), tuple(edges)

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise TooSymmetricError


def _frozen(told: tuple[int, list[tuple[int, int]], list[tuple[int, int]]]) -> tuple[object, ...]:
    return told[0], tuple(told[1]), tuple(told[2])


def _depths(before: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """How many edges the longest way to each vertex has; -1 behind and within a circle."""
    after: dict[int, list[int]] = defaultdict(list)
    missing = []
    for place, edges in enumerate(before):
        missing.append(len(edges))
        for _, one in edges:
            after[one].append(place)
    depths = [0 if not count else -1 for count in missing]
    waiting = [place for place, count in enumerate(missing) if not count]
    longest = [0] * len(missing)
    while waiting:
        place = waiting.pop()
        depths[place] = longest[place]
        for one in after[place]:
            longest[one] = max(longest[one], longest[place] + 1)
            missing[one] -= 1
            if not missing[one]:
                waiting.append(one)
    return depths


def _readable(pattern: Pattern, ranked: Sequence[int]) -> list[int]:
    """The order in which every vertex stands behind those it reads, as far as there is no circle."""
    rank = {place: number for number, place in enumerate(ranked)}
    missing, after = {}, defaultdict(list)
    for place, one in enumerate(pattern.vertices):
        sources = {operand.source for operand in one.operands if isinstance(operand, Tensor)}
        missing[place] = len(sources)
        for source in sources:
            after[source].append(place)
    ready = [rank[place] for place, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        first = ranked[heapq.heappop(ready)]
        order.append(first)
        for reader in after[first]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, rank[reader])
    placed = set(order)
    return order + [place for place in ranked if place not in placed]
