"""The pattern of a model without names, sizes and weights; and its fingerprint: one text and one digest, the same
for all isomorphic patterns.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

ABSENT = "none"
"""What stands for an input that is left out."""

BODY, FUNCTION = "[body]", "[function]"
"""Labels of the body of a node or function, and of a call: no operator is written with brackets."""


class Tensor(NamedTuple):
    """What a node reads: the output number ``slot`` of the vertex number ``source``."""

    source: int
    slot: int


Operand: TypeAlias = "Tensor | str"
"""What is read: a tensor, or a word for what no other vertex makes: ``const float32``, ``none`` for one left out."""


class Edge(NamedTuple):
    """That one vertex has to do with another, and how: ``role`` is unlike for each way."""

    source: int
    target: int
    role: str


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """One thing in a pattern: a node, an input, a body of a node, an argument of a body.

    ``label`` is its operator with the domain, or what else it is. ``attributes`` are ``name=value``, sorted by name;
    ``bodies`` are those of a node: the attribute and the number of the vertex. ``home`` is the body that it stands in;
    None for the model's own graph. ``results``: which of its outputs are outputs of the model.
    """

    label: str
    attributes: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    bodies: tuple[tuple[str, int], ...] = ()
    home: int | None = None
    results: tuple[int, ...] = ()

    @property
    def is_node(self) -> bool:
        """Whether it is a node: no input, no body, no argument."""
        return self.label != BODY and " " not in self.label


@dataclass(frozen=True)
class Pattern:
    """All vertices; they refer to each other by their places."""

    vertices: tuple[Vertex, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The places of nodes."""
        return tuple(place for place, one in enumerate(self.vertices) if one.is_node)

    def edges(self) -> Iterator[Edge]:
        """How each vertex depends on others."""
        for place, one in enumerate(self.vertices):
            for number, operand in enumerate(one.operands):
                if isinstance(operand, Tensor):
                    yield Edge(operand.source, place, f"{number}.{operand.slot}")
            for name, body in one.bodies:
                yield Edge(body, place, f"@{name}")
            if one.home is not None:
                yield Edge(place, one.home, "in")

    def reordered(self, order: Sequence[int]) -> Pattern:
        """The same pattern with its vertices in another order; those that nothing refers to may be left out."""
        place_of = {old: new for new, old in enumerate(order)}
        return Pattern(
            tuple(
                replace(
                    one,
                    operands=tuple(
                        Tensor(place_of[each.source], each.slot) if isinstance(each, Tensor) else each
                        for each in one.operands
                    ),
                    bodies=tuple((name, place_of[body]) for name, body in one.bodies),
                    home=None if one.home is None else place_of[one.home],
                )
                for one in (self.vertices[old] for old in order)
            )
        )


def own_text(one: Vertex) -> str:
    """All that is said of a vertex besides its edges: two that differ in it are never the same."""
    operands = ",".join("" if isinstance(operand, Tensor) else operand for operand in one.operands)
    results = ",".join(map(str, one.results))
    return f"{one.label}({operands}) {' '.join(one.attributes)} -> {results}"


FORM = "k2"
"""What a digest begins with: the rules of what belongs to a pattern, which change with it."""

_DIGITS = 20
_MOST_ROUNDS = 64
"""Of colour refinement: nodes that are farther from each other than that do not tell vertices apart."""

_PREFIXES: Mapping[str, str] = {"input": "x", "argument": "a", "output": "o"}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A pattern as text, a line for each vertex, and its digest: the same for isomorphic patterns."""

    text: str
    digest: str


def fingerprint_of(pattern: Pattern) -> Fingerprint:
    """The fingerprint of a pattern. Names, order, sizes and weights of the model have no part in it.

    The digest is that of how often which vertices meet after colour refinement (Weisfeiler and Leman 1968). Patterns
    that differ have another one, but for graphs whose vertices are alike in ways that no model is known to have.
    """
    colours = _refined_colours(pattern)
    vertices = sorted((colours[place], own_text(vertex)) for place, vertex in enumerate(pattern.vertices))
    edges = sorted((colours[edge.source], colours[edge.target], edge.role) for edge in pattern.edges())
    digest = sha256(repr((vertices, edges)).encode()).hexdigest()[:_DIGITS]
    ranked = sorted(range(len(pattern.vertices)), key=colours.__getitem__)
    return Fingerprint(text=text_of(pattern.reordered(_readable(pattern, ranked))), digest=f"{FORM}-{digest}")


def _refined_colours(pattern: Pattern) -> list[int]:
    """A number for each vertex: two of them are equal if nothing around the vertices tells them apart."""
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
    """A pattern as lines, in the order that its vertices have; each begins with a letter for its kind and a number."""
    numbers: Counter[str] = Counter()
    names: list[str] = []
    for one in pattern.vertices:
        letter = "g" if one.label == BODY else "n" if one.is_node else _PREFIXES.get(one.label.partition(" ")[0], "n")
        numbers[letter] += 1
        names.append(f"{letter}{numbers[letter]}")

    def read(operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        return f"{names[operand.source]}.{operand.slot}" if operand.slot else names[operand.source]

    lines = []
    for one, name in zip(pattern.vertices, names, strict=True):
        operands = "" if " " in one.label else f"({', '.join(map(read, one.operands))})"
        words = [f"{name} = {one.label}{operands}", *one.attributes]
        words += [f"@{attribute}={names[body]}" for attribute, body in one.bodies]
        words += [] if one.home is None else ["in", names[one.home]]
        if one.results:
            words.append("-> output" + ("" if one.results == (0,) else f" {','.join(map(str, one.results))}"))
        lines.append(f"{' '.join(words)}\n")
    return "".join(lines)


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
