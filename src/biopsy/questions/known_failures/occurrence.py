"""Where a known pattern stands in the pattern of a piece, and what is otherwise there.

Every node of the known pattern must be there, with the same operator and the same attributes, and read the same of the
others. What it reads from outside may be anything of the same type; constants may be computed; the two inputs of a
commutative operator may be exchanged; and there may be more nodes. All of that is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from biopsy.questions.known_failures.fingerprint import Operand, Pattern, Tensor, Vertex
from biopsy.text import count, first_of

COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min", "Sum", "Mean"}
)
MOST_STEPS = 20_000
_MOST_FOUND = 50
_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A place of a known pattern in another. ``more`` are the operators of nodes that it has besides.

    ``differences`` are sentences. ``essential``: attributes or types differ, which may be what the failure needs.
    """

    differences: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    essential: bool = False


class SearchLimitError(Exception):
    """There are too many ways in which the known pattern might stand there."""


def occurrence_in(known: Pattern, piece: Pattern) -> Occurrence | None:
    """The place with the fewest differences; None if there is none.

    Attributes and types may differ only if the known nodes are all that there are, and a single one is not looked for
    among others: it says too little. Nor are patterns with bodies. Raises SearchLimitError after 20,000 steps without
    an answer.
    """
    whole = len(known.nodes) == len(piece.nodes)
    if any(one.bodies for one in known.vertices) or not known.nodes or (len(known.nodes) == 1 and not whole):
        return None
    wanted, there = (Counter(one.vertices[place].label for place in one.nodes) for one in (known, piece))
    if wanted - there:
        return None
    for strictly in (True, False) if whole else (True,):
        matches: list[_Match] = []
        for match in _PatternSearch(known, piece, strictly).matches():
            matches.append(match)
            if len(matches) == _MOST_FOUND or not match.told:
                break
        if matches:
            best = min(matches, key=lambda match: (match.essential, len(match.told)))
            mapped = set(best.place_of.values())
            more = tuple(piece.vertices[place].label for place in piece.nodes if place not in mapped)
            differences = (*best.told, *_beyond(known, piece, best, more))
            return Occurrence(differences=differences, more=more, essential=best.essential)
    return None


@dataclass(kw_only=True)
class _Match:
    """Nodes of the known pattern -> nodes of the piece; its inputs -> what is read there; and what differs."""

    place_of: dict[int, int] = field(default_factory=dict)
    bound: dict[int, Operand] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    essential: bool = False


class _PatternSearch:
    """Tries nodes one by one, each of which reads from, or is read by, one that has its place already."""

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
        """All of them. Raises SearchLimitError."""
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
        """The match with one node more, for each order of the inputs of a commutative one in which they fit."""
        known, there = self._known.vertices[place], self._piece.vertices[candidate]
        if there.bodies or len(known.operands) != len(there.operands):
            return
        told, essential = match.told, match.essential
        if known.attributes != there.attributes:
            if self._strictly:
                return
            here, fixed = (
                first_of(
                    [each for each in one.attributes if each not in other.attributes] or ["the default"], _MOST_NAMED
                )
                for one, other in ((there, known), (known, there))
            )
            told, essential = (*told, f"{known.label} has {here} here, {fixed} there"), True
        orders: list[tuple[tuple[Operand, ...], tuple[str, ...]]] = [(there.operands, ())]
        if known.label in COMMUTATIVE and len(there.operands) == 2:
            orders.append(((there.operands[1], there.operands[0]), (f"the inputs of {known.label} are exchanged",)))
        for operands, remark in orders:
            extended = _Match(
                place_of={**match.place_of, place: candidate},
                bound=dict(match.bound),
                told=(*told, *remark),
                essential=essential,
            )
            if all(
                self._fits(extended, known, one, other) for one, other in zip(known.operands, operands, strict=True)
            ):
                yield extended

    def _fits(self, match: _Match, reader: Vertex, wanted: Operand, there: Operand) -> bool:
        """Whether one input of a node fits; what is bound and told by it goes into ``match``."""
        if isinstance(wanted, str):
            if wanted == there:
                return True
            if isinstance(there, str):
                return self._allowed(match, f"{_words(there)} of {reader.label} here, {_words(wanted)} there")
            if wanted == "none":
                return False
            match.told += (f"an input of {reader.label} is computed or fed here, a constant there",)
            return True
        source = self._known.vertices[wanted.source]
        if source.is_node:
            if not isinstance(there, Tensor) or there.slot != wanted.slot:
                return False
            place = match.place_of.get(wanted.source, there.source)
            return place == there.source and self._piece.vertices[there.source].label == source.label
        if there == "none" or match.bound.setdefault(wanted.source, there) != there:
            return False
        elem = source.label.partition(" ")[2]
        if isinstance(there, str):
            remark = f"an input of {reader.label} is a constant here, fed there"
            if remark not in match.told:
                match.told += (remark,)
            given = there.removeprefix("const ")
        else:
            maker = self._piece.vertices[there.source]
            types = (maker.label.partition(" ")[2],) if maker.label.startswith("input ") else maker.types
            given = (types[there.slot] if there.slot < len(types) else "") or elem
        return given == elem or self._allowed(match, f"{given} here, {elem} there")

    def _allowed(self, match: _Match, difference: str) -> bool:
        """Note a difference that may be what matters; False where none such is allowed."""
        if self._strictly:
            return False
        if difference not in match.told:
            match.told += (difference,)
        match.essential = True
        return True


def _connected(known: Pattern) -> list[int]:
    """The nodes in an order in which each one has to do with one before, as far as that can be."""
    near: dict[int, set[int]] = {place: set() for place in known.nodes}
    for place in known.nodes:
        for operand in known.vertices[place].operands:
            if isinstance(operand, Tensor) and operand.source in near:
                near[place].add(operand.source)
                near[operand.source].add(place)
    order: list[int] = []
    left = list(known.nodes)
    while left:
        place = next((one for one in left if near[one] & set(order)), left[0])
        left.remove(place)
        order.append(place)
    return order


# What differs


def _beyond(known: Pattern, piece: Pattern, match: _Match, more: Sequence[str]) -> Iterator[str]:
    """What else there is in the piece."""
    if more:
        yield f"{count(len(more), 'node')} more here: {first_of(more, _MOST_NAMED)}"
    reads, reads_there = (
        Counter(operand for one in pattern.vertices for operand in one.operands if isinstance(operand, Tensor))
        for pattern in (known, piece)
    )
    for tensor in sorted(reads):
        maker, there = known.vertices[tensor.source], match.place_of.get(tensor.source)
        if there is None or tensor.slot in maker.results:
            continue
        is_read_more = reads_there[Tensor(there, tensor.slot)] > reads[tensor]
        if is_read_more or tensor.slot in piece.vertices[there].results:
            yield f"what {maker.label} makes is read by others too, or an output, here"
    dangling = sum(one.label.startswith("output ") for one in piece.vertices)
    if dangling:
        yield f"{count(dangling, 'output')} here {'is a constant' if dangling == 1 else 'are constants'}"


def _words(operand: str) -> str:
    return "nothing as an input" if operand == "none" else f"a constant of {operand.removeprefix('const ')}"
