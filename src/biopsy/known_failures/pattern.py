"""The pattern of a model: which operators read what of which, without names, sizes and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

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
    ``types`` are the element types of its outputs, "" where nobody knows: they follow from the rest, and are no part of
    the text.
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

    def reordered(self, order: list[int]) -> Pattern:
        """The same pattern with its vertices in another order."""
        place_of = {old: new for new, old in enumerate(order)}
        return Pattern(tuple(_renumbered(self.vertices[old], place_of) for old in order))


def _renumbered(one: Vertex, place_of: dict[int, int]) -> Vertex:
    return Vertex(
        label=one.label,
        attributes=one.attributes,
        operands=tuple(
            Tensor(place_of[operand.source], operand.slot) if isinstance(operand, Tensor) else operand
            for operand in one.operands
        ),
        bodies=tuple((name, place_of[body]) for name, body in one.bodies),
        home=None if one.home is None else place_of[one.home],
        results=one.results,
        types=one.types,
    )


def own_text(one: Vertex) -> str:
    """All that is said of a vertex besides its edges: two that differ in it are never the same."""
    operands = ",".join("" if isinstance(operand, Tensor) else operand for operand in one.operands)
    results = ",".join(map(str, one.results))
    return f"{one.label}({operands}) {' '.join(one.attributes)} -> {results}"
