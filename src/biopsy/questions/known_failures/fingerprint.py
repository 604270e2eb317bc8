"""The pattern of a model without names, sizes and weights, and its fingerprint: a text and a digest of it.

Isomorphic patterns have the same fingerprint, because their vertices are put in a canonical order. Colour refinement
(Weisfeiler and Leman 1968) distinguishes vertices by their surroundings. Vertices that remain alike are split into
components that touch only distinguished ones; each is ordered by itself, so that many equal branches cost no more than
one of them each. In a component that remains alike, each vertex of one colour is individualized in turn, and the least
description counts (McKay 1981, without his search for automorphisms). That may take exponential time, so the work has a
limit.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, TypeAlias

ABSENT = "none"
"""The word for an optional input that is not given."""

BODY, FUNCTION = "[body]", "[function]"
"""Labels of the body of a node or function, and of a call; the names of operators have no brackets."""


class Tensor(NamedTuple):
    """Output number ``slot`` of the vertex number ``source``."""

    source: int
    slot: int


Operand: TypeAlias = "Tensor | str"
"""What a node reads: a tensor, or a word such as ``const float32``, or ``none`` for an input that is not given."""


class Edge(NamedTuple):
    """A relation of two vertices; ``role`` is its kind."""

    source: int
    target: int
    role: str


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A node, an input, a body of a node, or an argument of a body.

    ``label`` is the operator with its domain, or the kind of vertex. ``attributes`` are ``name=value``, sorted by name;
    ``bodies`` are those of a node: the attribute and the number of the vertex. ``home`` is the body that the vertex is
    in; None: the main graph. ``results``: which of its outputs are outputs of the model. ``types`` are the element
    types of its outputs, "" if not known; they follow from the other fields, and are no part of the text.
    """

    label: str
    attributes: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    bodies: tuple[tuple[str, int], ...] = ()
    home: int | None = None
    results: tuple[int, ...] = ()
    types: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_node(self) -> bool:
        """Whether it is a node."""
        return self.label != BODY and " " not in self.label


@dataclass(frozen=True)
class Pattern:
    """All vertices of a model, which refer to each other by their places here."""

    vertices: tuple[Vertex, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The places of nodes."""
        return tuple(place for place, vertex in enumerate(self.vertices) if vertex.is_node)

    def edges(self) -> Iterator[Edge]:
        """The edges between vertices."""
        for place, vertex in enumerate(self.vertices):
            for number, operand in enumerate(vertex.operands):
                if isinstance(operand, Tensor):
                    yield Edge(operand.source, place, f"{number}.{operand.slot}")
            for name, body in vertex.bodies:
                yield Edge(body, place, f"@{name}")
            if vertex.home is not None:
                yield Edge(place, vertex.home, "in")

    def reordered(self, order: Sequence[int]) -> Pattern:
        """The same pattern with its vertices in another order, which may lack vertices that no other refers to."""
        place_of = {old: new for new, old in enumerate(order)}
        return Pattern(
            tuple(
                replace(
                    vertex,
                    operands=tuple(
                        Tensor(place_of[each.source], each.slot) if isinstance(each, Tensor) else each
                        for each in vertex.operands
                    ),
                    bodies=tuple((name, place_of[body]) for name, body in vertex.bodies),
                    home=None if vertex.home is None else place_of[vertex.home],
                )
                for vertex in (self.vertices[old] for old in order)
            )
        )


def own_text(vertex: Vertex) -> str:
    """A vertex without its edges as text: vertices with different texts are never the same."""
    operands = ",".join("" if isinstance(operand, Tensor) else operand for operand in vertex.operands)
    results = ",".join(map(str, vertex.results))
    return f"{vertex.label}({operands}) {' '.join(vertex.attributes)} -> {results}"


FORM = "k1"
"""The prefix of digests, which changes with the rules of what belongs to a pattern."""

_DIGITS = 20
_PREFIXES: Mapping[str, str] = {"input": "x", "argument": "a", "output": "o"}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A pattern in canonical form.

    ``text`` is the pattern, a line for each vertex. ``exact``: it is the same for isomorphic patterns, and only for
    them; otherwise the search for the canonical order reached its limit, ``digest`` is that of counts, and other
    patterns may have it too.
    """

    text: str
    digest: str
    exact: bool

    @cached_property
    def pattern(self) -> Pattern:
        """The pattern that the text describes."""
        return pattern_in(self.text)

    def same_as(self, other: Fingerprint) -> bool:
        """Whether both are certainly of the same pattern."""
        return self.exact and other.exact and self.text == other.text


def fingerprint_of(pattern: Pattern) -> Fingerprint:
    """The fingerprint of a pattern. Names, order, sizes and weights of the model do not matter.

    If the pattern is too symmetric for an exact one, the digest is that of the colours of its vertices and edges: this
    is the same for isomorphic patterns, and rarely for others.
    """
    ordering = _Ordering(pattern)
    places = range(len(pattern.vertices))
    try:
        ranked, counts, mark = ordering.ordered(places, ordering.first_colours()), "", "-"
    except TooSymmetricError:
        colours = ordering.colours()
        own = sorted((colours[place], own_text(vertex)) for place, vertex in enumerate(pattern.vertices))
        edges = sorted((colours[edge.source], colours[edge.target], edge.role) for edge in pattern.edges())
        ranked, counts, mark = sorted(places, key=colours.__getitem__), repr((own, edges)), "~"
    text = text_of(pattern.reordered(_readable(pattern, ranked)))
    digest = sha256((counts or text).encode()).hexdigest()[:_DIGITS]
    return Fingerprint(text=text, digest=f"{FORM}{mark}{digest}", exact=not counts)


def text_of(pattern: Pattern) -> str:
    """A pattern as lines, one for each vertex in order, which begin with a letter for its kind and a number."""
    numbers: Counter[str] = Counter()
    names: list[str] = []
    for vertex in pattern.vertices:
        kind = vertex.label.partition(" ")[0]
        letter = "g" if vertex.label == BODY else "n" if vertex.is_node else _PREFIXES.get(kind, "n")
        numbers[letter] += 1
        names.append(f"{letter}{numbers[letter]}")

    def read(operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        return f"{names[operand.source]}.{operand.slot}" if operand.slot else names[operand.source]

    lines = []
    for vertex, name in zip(pattern.vertices, names, strict=True):
        operands = "" if " " in vertex.label else f"({', '.join(map(read, vertex.operands))})"
        words = [f"{name} = {vertex.label}{operands}", *vertex.attributes]
        words += [f"@{attribute}={names[body]}" for attribute, body in vertex.bodies]
        words += [] if vertex.home is None else ["in", names[vertex.home]]
        if vertex.results:
            words.append("-> output" + ("" if vertex.results == (0,) else f" {','.join(map(str, vertex.results))}"))
        lines.append(f"{' '.join(words)}\n")
    return "".join(lines)


_HEAD = re.compile(r"([a-z]\d+) = ((?:input|argument \d+|output const|output) [^\s()]+|[^\s()]+\(([^()]*)\))(.*)")
_REFERENCE = re.compile(r"([a-z]\d+)(?:\.(\d+))?")
_CONSTANT = re.compile(r"const [^\s(),]+")
_MOST_LINES = 2000


def pattern_in(text: str) -> Pattern:
    """The pattern that lines describe. Raises ValueError with the first line that is not understood."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= _MOST_LINES:
        raise ValueError(f"{len(lines)} lines: it has 1 to {_MOST_LINES:,}")
    heads = [(_HEAD.fullmatch(line), line) for line in lines]
    place_of = {head[1]: place for place, (head, _) in enumerate(heads) if head is not None}
    vertices = []
    for head, line in heads:
        try:
            if head is None:
                raise ValueError
            vertices.append(_vertex(head, place_of))
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"not understood: {line:.80}") from error
    if len(place_of) < len(heads):
        raise ValueError("two lines begin with the same name")
    return Pattern(tuple(vertices))


def _vertex(head: re.Match[str], place_of: dict[str, int]) -> Vertex:
    """The vertex that a line describes. Raises KeyError, IndexError or ValueError if it describes none."""
    description, arrow, results = head[4].partition(" -> output")
    words = description.split()
    home = words.index("in") if "in" in words else len(words)
    bodies = [each[1:].split("=", 1) for each in words[:home] if each.startswith("@")]
    attributes = [each for each in words[:home] if not each.startswith("@")]
    if not all("=" in each for each in attributes):
        raise ValueError
    operands: list[Operand] = []
    for text in map(str.strip, head[3].split(",") if head[3] else ()):
        reference = _REFERENCE.fullmatch(text)
        if reference is not None and text != ABSENT:
            operands.append(Tensor(place_of[reference[1]], int(reference[2] or 0)))
        elif text == ABSENT or _CONSTANT.fullmatch(text):
            operands.append(text)
        else:
            raise ValueError
    return Vertex(
        label=head[2] if head[3] is None else head[2].partition("(")[0],
        attributes=tuple(sorted(attributes)),
        operands=tuple(operands),
        bodies=tuple(sorted((name, place_of[body]) for name, body in bodies)),
        home=place_of[words[home + 1]] if "in" in words else None,
        results=tuple(sorted(map(int, results.split(",")))) if results.strip() else (0,) if arrow else (),
    )


MOST_WORK = 400_000
"""Visits of edges, which take about a second."""


class TooSymmetricError(Exception):
    """The search for the canonical order reached its limit."""


class _Ordering:
    """The search for the canonical order. Colours are integers that mean the same in isomorphic patterns."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._budget = MOST_WORK
        edges = list(pattern.edges())
        number_of = {role: number for number, role in enumerate(sorted({edge.role for edge in edges}))}
        size = len(pattern.vertices)
        self._into: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        for edge in edges:
            self._into[edge.target].append((number_of[edge.role], edge.source))
            self._out[edge.source].append((number_of[edge.role], edge.target))

    def first_colours(self) -> dict[int, int]:
        """Colours by the text of each vertex, and its distances from the inputs and outputs of the pattern."""
        ahead, behind = _depths(self._into), _depths(self._out)
        traits = [
            (own_text(vertex), ahead[place], behind[place]) for place, vertex in enumerate(self._pattern.vertices)
        ]
        number_of = {text: number for number, text in enumerate(sorted(set(traits)))}
        return {place: number_of[text] for place, text in enumerate(traits)}

    def ordered(self, among: Sequence[int], colours: dict[int, int]) -> list[int]:
        """The canonical order of some vertices; their ``colours`` express their edges to others."""
        colours = self._refined(among, colours)
        sizes = Counter(colours[place] for place in among)
        distinct = sorted((place for place in among if sizes[colours[place]] == 1), key=colours.__getitem__)
        alike = [place for place in among if sizes[colours[place]] > 1]
        if not alike:
            return distinct
        parts = self._components(alike)
        if len(parts) == 1 and not distinct:
            return self._individualized(alike, colours, sizes)
        orders = [self.ordered(part, {place: colours[place] for place in part}) for part in parts]
        orders.sort(key=lambda order: self._description(order, colours))
        return [*distinct, *(place for order in orders for place in order)]

    def colours(self) -> dict[int, int]:
        """The colours of all vertices after refinement only, without a limit of work."""
        self._budget = 1 << 60
        return self._refined(range(len(self._into)), self.first_colours())

    def _individualized(self, among: list[int], colours: dict[int, int], sizes: Counter[int]) -> list[int]:
        """The order with the least description, of those that begin with a vertex of the rarest colour."""
        chosen = min(sizes, key=lambda colour: (sizes[colour], colour))
        orders = []
        for place in (each for each in among if colours[each] == chosen):
            special = {each: 2 * colour for each, colour in colours.items()}
            special[place] -= 1
            orders.append(self.ordered(among, special))
        return min(orders, key=lambda order: self._description(order, colours))

    def _refined(self, among: Sequence[int], colours: dict[int, int]) -> dict[int, int]:
        """Colours that distinguish vertices with different neighbours, in the order of the colours before."""
        inside = set(among)
        into = {place: [(role, near) for role, near in self._into[place] if near in inside] for place in among}
        out = {place: [(role, near) for role, near in self._out[place] if near in inside] for place in among}
        cost = len(among) + sum(map(len, into.values())) + sum(map(len, out.values()))
        count = len({colours[place] for place in among})
        while True:
            self._spend(cost)
            surroundings = {
                place: (
                    colours[place],
                    tuple(sorted((role, colours[near]) for role, near in into[place])),
                    tuple(sorted((role, colours[near]) for role, near in out[place])),
                )
                for place in among
            }
            different = sorted(set(surroundings.values()))
            number_of = {each: number for number, each in enumerate(different)}
            colours = {place: number_of[each] for place, each in surroundings.items()}
            if len(different) == count:
                return colours
            count = len(different)

    def _components(self, among: Iterable[int]) -> list[list[int]]:
        unvisited, components = set(among), []
        while unvisited:
            waiting = [unvisited.pop()]
            component = []
            while waiting:
                place = waiting.pop()
                component.append(place)
                neighbours = {near for _, near in (*self._into[place], *self._out[place])} & unvisited
                unvisited -= neighbours
                waiting += neighbours
            components.append(component)
        return components

    def _description(self, order: Sequence[int], colours: dict[int, int]) -> tuple[object, ...]:
        """The colours and edges of some vertices in this order; equal only if they are isomorphic."""
        self._spend(len(order))
        at = {place: number for number, place in enumerate(order)}
        edges = sorted((at[place], role, at[near]) for place in order for role, near in self._into[place] if near in at)
        return tuple(colours[place] for place in order), tuple(edges)

    def _spend(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            raise TooSymmetricError


def _depths(before: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """How many edges the longest path to each vertex has; -1 behind and within a cycle."""
    after: dict[int, list[int]] = defaultdict(list)
    for place, edges in enumerate(before):
        for _, source in edges:
            after[source].append(place)
    missing, depths = [len(edges) for edges in before], [-1] * len(before)
    waiting, longest = [place for place, count in enumerate(missing) if not count], [0] * len(before)
    while waiting:
        place = waiting.pop()
        depths[place] = longest[place]
        for reader in after[place]:
            longest[reader] = max(longest[reader], longest[place] + 1)
            missing[reader] -= 1
            if not missing[reader]:
                waiting.append(reader)
    return depths


def _readable(pattern: Pattern, ranked: Sequence[int]) -> list[int]:
    """The topological order with the first ranks first; vertices in or behind cycles come last."""
    rank = {place: number for number, place in enumerate(ranked)}
    missing, after = {}, defaultdict(list)
    for place, vertex in enumerate(pattern.vertices):
        sources = {operand.source for operand in vertex.operands if isinstance(operand, Tensor)}
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
