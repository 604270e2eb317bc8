"""The occurrence of a known pattern in the pattern of a piece, and how they differ.

The piece must have every node of the known pattern, with the same operator and attributes, and with the same edges
between them. Differences are listed: inputs from outside may be any tensors of the same type, constants may be computed
instead, the two inputs of a commutative operator may be exchanged, and the piece may have more nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from biopsy.questions.known_failures.fingerprint import ABSENT, Operand, Pattern, Tensor, Vertex
from biopsy.text import count, first_of

COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min", "Sum", "Mean"}
)
MOST_STEPS = 20_000
_MOST_MATCHES = 50
_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A known pattern in another one. ``more`` are the operators of further nodes, ``differences`` are sentences.

    ``essential``: attributes or types differ, which the failure may need.
    """

    differences: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    essential: bool = False


class SearchLimitError(Exception):
    """There are too many ways to place the known pattern."""


def occurrence_in(known: Pattern, piece: Pattern) -> Occurrence | None:
    """The occurrence with the fewest differences; None if there is none.

    Attributes and types may differ only if the piece has no further nodes. A single node is not looked for among
    others, because that would say too little; nor are patterns with bodies. Raises SearchLimitError after 20,000 steps.
    """
    same_size = len(known.nodes) == len(piece.nodes)
    if any(vertex.bodies for vertex in known.vertices) or not known.nodes or (len(known.nodes) == 1 and not same_size):
        return None
    known_labels, labels = (
        Counter(pattern.vertices[place].label for place in pattern.nodes) for pattern in (known, piece)
    )
    if known_labels - labels:
        return None
    for strictly in (True, False) if same_size else (True,):
        matches: list[_Match] = []
        for match in _PatternSearch(known, piece, strictly).matches():
            matches.append(match)
            if len(matches) == _MOST_MATCHES or not match.differences:
                break
        if matches:
            best = min(matches, key=lambda match: (match.essential, len(match.differences)))
            mapped = set(best.place_of.values())
            more = tuple(piece.vertices[place].label for place in piece.nodes if place not in mapped)
            differences = (*best.differences, *_outer_differences(known, piece, best, more))
            return Occurrence(differences=differences, more=more, essential=best.essential)
    return None


@dataclass(kw_only=True)
class _Match:
    """Nodes of the known pattern -> nodes of the piece (``place_of``); its inputs -> operands (``bound``)."""

    place_of: dict[int, int] = field(default_factory=dict)
    bound: dict[int, Operand] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    essential: bool = False


class _PatternSearch:
    """A backtracking search that places one node after the other, each next to one that has its place."""

    def __init__(self, known: Pattern, piece: Pattern, strictly: bool) -> None:
        self._known = known
        self._piece = piece
        self._strictly = strictly
        self._steps = 0
        self._order = _connected(known)
        self._candidates: dict[str, list[int]] = {}
        for place in piece.nodes:
            self._candidates.setdefault(piece.vertices[place].label, []).append(place)

    def matches(self) -> Iterator[_Match]:
        """All matches. Raises SearchLimitError."""
        return self._from(0, _Match())

    def _from(self, number: int, match: _Match) -> Iterator[_Match]:
        if number == len(self._order):
            yield match
            return
        place = self._order[number]
        for candidate in self._candidates.get(self._known.vertices[place].label, ()):
            if candidate in match.place_of.values():
                continue
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise SearchLimitError
            for extended in self._extended(match, place, candidate):
                yield from self._from(number + 1, extended)

    def _extended(self, match: _Match, place: int, candidate: int) -> Iterator[_Match]:
        """The match with one more node, once for each order of its inputs that fits."""
        known, found = self._known.vertices[place], self._piece.vertices[candidate]
        if found.bodies or len(known.operands) != len(found.operands):
            return
        differences, essential = match.differences, match.essential
        if known.attributes != found.attributes:
            if self._strictly:
                return
            here, there = (
                first_of(
                    [each for each in vertex.attributes if each not in other.attributes] or ["the default"],
                    _MOST_NAMED,
                )
                for vertex, other in ((found, known), (known, found))
            )
            differences, essential = (*differences, f"{known.label} has {here} here, {there} there"), True
        orders: list[tuple[tuple[Operand, ...], tuple[str, ...]]] = [(found.operands, ())]
        if known.label in COMMUTATIVE and len(found.operands) == 2:
            orders.append(((found.operands[1], found.operands[0]), (f"the inputs of {known.label} are exchanged",)))
        for operands, exchange in orders:
            extended = _Match(
                place_of={**match.place_of, place: candidate},
                bound=dict(match.bound),
                differences=(*differences, *exchange),
                essential=essential,
            )
            pairs = zip(known.operands, operands, strict=True)
            if all(self._fits(extended, known, expected, operand) for expected, operand in pairs):
                yield extended

    def _fits(self, match: _Match, reader: Vertex, expected: Operand, operand: Operand) -> bool:
        """Whether an input of a node may be ``operand``; adds what follows from it to ``match``."""
        if isinstance(expected, str):
            if expected == operand:
                return True
            if isinstance(operand, str):
                return self._allows(match, f"{_words(operand)} of {reader.label} here, {_words(expected)} there")
            if expected == ABSENT:
                return False
            match.differences += (f"an input of {reader.label} is computed or fed here, a constant there",)
            return True
        source = self._known.vertices[expected.source]
        if source.is_node:
            if not isinstance(operand, Tensor) or operand.slot != expected.slot:
                return False
            place = match.place_of.get(expected.source, operand.source)
            return place == operand.source and self._piece.vertices[operand.source].label == source.label
        if operand == ABSENT or match.bound.setdefault(expected.source, operand) != operand:
            return False
        expected_type = source.label.partition(" ")[2]
        if isinstance(operand, str):
            difference = f"an input of {reader.label} is a constant here, fed there"
            if difference not in match.differences:
                match.differences += (difference,)
            element_type = operand.removeprefix("const ")
        else:
            maker = self._piece.vertices[operand.source]
            types = (maker.label.partition(" ")[2],) if maker.label.startswith("input ") else maker.types
            element_type = (types[operand.slot] if operand.slot < len(types) else "") or expected_type
        return element_type == expected_type or self._allows(match, f"{element_type} here, {expected_type} there")

    def _allows(self, match: _Match, difference: str) -> bool:
        """Add an essential difference to the match; False if none is allowed."""
        if self._strictly:
            return False
        if difference not in match.differences:
            match.differences += (difference,)
        match.essential = True
        return True


def _connected(known: Pattern) -> list[int]:
    """The nodes in an order in which each is next to one before it, as far as possible."""
    near: dict[int, set[int]] = {place: set() for place in known.nodes}
    for place in known.nodes:
        for operand in known.vertices[place].operands:
            if isinstance(operand, Tensor) and operand.source in near:
                near[place].add(operand.source)
                near[operand.source].add(place)
    order: list[int] = []
    remaining = list(known.nodes)
    while remaining:
        place = next((each for each in remaining if near[each] & set(order)), remaining[0])
        remaining.remove(place)
        order.append(place)
    return order


def _outer_differences(known: Pattern, piece: Pattern, match: _Match, more: Sequence[str]) -> Iterator[str]:
    """How the piece differs outside of the matched nodes."""
    if more:
        yield f"{count(len(more), 'node')} more here: {first_of(more, _MOST_NAMED)}"
    known_reads, reads = (
        Counter(operand for vertex in pattern.vertices for operand in vertex.operands if isinstance(operand, Tensor))
        for pattern in (known, piece)
    )
    for tensor in sorted(known_reads):
        maker, place = known.vertices[tensor.source], match.place_of.get(tensor.source)
        if place is None or tensor.slot in maker.results:
            continue
        is_read_more = reads[Tensor(place, tensor.slot)] > known_reads[tensor]
        if is_read_more or tensor.slot in piece.vertices[place].results:
            yield f"what {maker.label} makes is read by others too, or an output, here"
    constants = sum(vertex.label.startswith("output ") for vertex in piece.vertices)
    if constants:
        yield f"{count(constants, 'output')} here {'is a constant' if constants == 1 else 'are constants'}"


def _words(operand: str) -> str:
    return "nothing as an input" if operand == ABSENT else f"a constant of {operand.removeprefix('const ')}"
