"""The pattern of a model without names, sizes and weights; and its fingerprint: one text and one digest, the same
for all isomorphic patterns.
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


# A pattern as text that a person can read, and the digest of it that a catalogue is searched by.

FORM = "k1"
"""What a digest begins with: the rules of what belongs to a pattern, which change with it."""

_DIGITS = 20
_PREFIXES: Mapping[str, str] = {"input": "x", "argument": "a", "output": "o"}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What two patterns have in common if and only if they are the same.

    ``text`` is the pattern, a line for each vertex. ``exact``: it is the same for isomorphic patterns; else the limit
    of the search for it was reached, ``digest`` is that of counts, and others may have it too.
    """

    text: str
    digest: str
    exact: bool

    @cached_property
    def pattern(self) -> Pattern:
        """Its vertices."""
        return pattern_in(self.text)

    def same_as(self, other: Fingerprint) -> bool:
        """Whether both are of the same pattern, without doubt."""
        return self.exact and other.exact and self.text == other.text


def fingerprint_of(pattern: Pattern) -> Fingerprint:
    """The fingerprint of a pattern: names, order, sizes and weights of the model have no part in it.

    Where its parts are alike in too many ways, the digest is that of how often which vertices meet: this is the same
    for isomorphic patterns in any case, and seldom for others.
    """
    ordering = _Ordering(pattern)
    everything = range(len(pattern.vertices))
    try:
        ranked, counts, mark = ordering.ordered(everything, ordering.first_colours()), "", "-"
    except TooSymmetricError:
        colours = ordering.colours()
        own = sorted((colours[place], own_text(one)) for place, one in enumerate(pattern.vertices))
        edges = sorted((colours[edge.source], colours[edge.target], edge.role) for edge in pattern.edges())
        ranked, counts, mark = sorted(everything, key=colours.__getitem__), repr((own, edges)), "~"
    text = text_of(pattern.reordered(_readable(pattern, ranked)))
    digest = sha256((counts or text).encode()).hexdigest()[:_DIGITS]
    return Fingerprint(text=text, digest=f"{FORM}{mark}{digest}", exact=not counts)


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


# And back


_HEAD = re.compile(r"([a-z]\d+) = ((?:input|argument \d+|output const|output) [^\s()]+|[^\s()]+\(([^()]*)\))(.*)")
_REFERENCE = re.compile(r"([a-z]\d+)(?:\.(\d+))?")
_CONSTANT = re.compile(r"const [^\s(),]+")
_MOST_LINES = 2000


def pattern_in(text: str) -> Pattern:
    """The pattern that lines describe. Raises ValueError with the first line that describes nothing."""
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
    """What a line describes. Raises KeyError, IndexError or ValueError where it describes nothing."""
    said, arrow, results = head[4].partition(" -> output")
    words = said.split()
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


# One order of the vertices of a pattern, whatever order they came in: that of isomorphic patterns is the same.
#
# Colour refinement (Weisfeiler and Leman 1968) tells vertices apart by what is around them. What it leaves alike is
# parted into components that only touch vertices told apart already: these are ordered each by itself, so that many
# equal branches cost no more than one of them each. A component that stays alike is tried with each vertex of one
# colour made special in turn, and the least description counts (McKay 1981, without his search for automorphisms).
# That may take for ever, so the work has a limit.

MOST_WORK = 400_000
"""Visits of edges: a second or so."""


class TooSymmetricError(Exception):
    """The limit was reached: parts of the pattern are alike in too many ways."""


class _Ordering:
    """The search for the order. Colours are whole numbers, which mean the same in isomorphic patterns."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._left = MOST_WORK
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
        traits = [(own_text(one), ahead[place], behind[place]) for place, one in enumerate(self._pattern.vertices)]
        number_of = {text: number for number, text in enumerate(sorted(set(traits)))}
        return {place: number_of[text] for place, text in enumerate(traits)}

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
            surroundings = {
                place: (
                    colours[place],
                    tuple(sorted((role, colours[one]) for role, one in into[place])),
                    tuple(sorted((role, colours[one]) for role, one in out[place])),
                )
                for place in among
            }
            unlike = sorted(set(surroundings.values()))
            number_of = {each: number for number, each in enumerate(unlike)}
            colours = {place: number_of[each] for place, each in surroundings.items()}
            if len(unlike) == count:
                return colours
            count = len(unlike)

    def _components(self, among: Iterable[int]) -> list[list[int]]:
        left, components = set(among), []
        while left:
            waiting = [left.pop()]
            part = []
            while waiting:
                place = waiting.pop()
                part.append(place)
                near = {one for _, one in (*self._into[place], *self._out[place])} & left
                left -= near
                waiting += near
            components.append(part)
        return components

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


def _depths(before: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """How many edges the longest way to each vertex has; -1 behind and within a circle."""
    after: dict[int, list[int]] = defaultdict(list)
    for place, edges in enumerate(before):
        for _, one in edges:
            after[one].append(place)
    missing, depths = [len(edges) for edges in before], [-1] * len(before)
    waiting, longest = [place for place, count in enumerate(missing) if not count], [0] * len(before)
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
