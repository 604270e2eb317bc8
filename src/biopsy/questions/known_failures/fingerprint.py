"""The pattern of a model without names, sizes and weights, and its fingerprint: a text for people, and a digest.

Isomorphic patterns have the same digest. Colour refinement (Weisfeiler and Leman 1968) gives vertices the same colour
if their surroundings are alike, and the digest is that of all vertices and edges with their colours.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

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
    in; None: the main graph. ``results``: which of its outputs are outputs of the model.
    """

    label: str
    attributes: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    bodies: tuple[tuple[str, int], ...] = ()
    home: int | None = None
    results: tuple[int, ...] = ()

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


FORM = "k2"
"""The prefix of digests, which changes with the rules of what belongs to a pattern."""

_DIGITS = 20
_MOST_ROUNDS = 64
"""Rounds of colour refinement: what is farther from a vertex than this does not change its colour."""

_PREFIXES: Mapping[str, str] = {"input": "x", "argument": "a", "output": "o"}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A pattern as text, with a line for each vertex, and its digest.

    Isomorphic patterns have the same digest; in the text, vertices of the same colour may be in another order.
    """

    text: str
    digest: str


def fingerprint_of(pattern: Pattern) -> Fingerprint:
    """The fingerprint of a pattern. The digest does not depend on names, order, sizes and weights of the model.

    Two different patterns have the same digest only if ``_MOST_ROUNDS`` rounds of colour refinement give them the same
    colours, as in some regular graphs. No such models are known.
    """
    colours = _refined_colours(pattern)
    vertices = sorted((colours[place], own_text(vertex)) for place, vertex in enumerate(pattern.vertices))
    edges = sorted((colours[edge.source], colours[edge.target], edge.role) for edge in pattern.edges())
    digest = sha256(repr((vertices, edges)).encode()).hexdigest()[:_DIGITS]
    ranked = sorted(range(len(pattern.vertices)), key=colours.__getitem__)
    return Fingerprint(text=text_of(pattern.reordered(_readable(pattern, ranked))), digest=f"{FORM}-{digest}")


def _refined_colours(pattern: Pattern) -> list[int]:
    """The colour of each vertex, as a number: two vertices have the same if their surroundings are alike."""
    into: list[list[tuple[str, int]]] = [[] for _ in pattern.vertices]
    out: list[list[tuple[str, int]]] = [[] for _ in pattern.vertices]
    for edge in pattern.edges():
        into[edge.target].append((edge.role, edge.source))
        out[edge.source].append((edge.role, edge.target))
    traits: list[Any] = [own_text(vertex) for vertex in pattern.vertices]
    count, colours = 0, list[int]()
    for _ in range(_MOST_ROUNDS):
        distinct = sorted(set(traits))
        number_of = {trait: number for number, trait in enumerate(distinct)}
        colours = [number_of[trait] for trait in traits]
        if len(distinct) == count:
            break
        count = len(distinct)
        traits = [
            (
                colours[place],
                _neighbours(into[place], colours),
                _neighbours(out[place], colours),
            )
            for place in range(len(colours))
        ]
    return colours


def _neighbours(edges: Sequence[tuple[str, int]], colours: Sequence[int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((role, colours[neighbour]) for role, neighbour in edges))


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


def _readable(pattern: Pattern, ranked: Sequence[int]) -> list[int]:
    """The topological order that prefers the first of ``ranked``; vertices in or behind cycles come last."""
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
