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
    if _operators(known) - _operators(piece):
        return None
    found = _best(known, piece, strictly=True)
    if found is None and whole:
        found = _best(known, piece, strictly=False)
    return found


def _operators(pattern: Pattern) -> Counter[str]:
    return Counter(pattern.vertices[place].label for place in pattern.nodes)


def _best(known: Pattern, piece: Pattern, *, strictly: bool) -> Occurrence | None:
    search = _PatternSearch(known, piece, strictly)
    places = []
    for match in search.matches():
        places.append(match)
        if len(places) == _MOST_FOUND or not match.told:
            break
    if not places:
        return None
    best = min(places, key=lambda match: (match.essential, len(match.told)))
    mapped = set(best.place_of.values())
    more = tuple(piece.vertices[place].label for place in piece.nodes if place not in mapped)
    return Occurrence(differences=(*best.told, *_beyond(known, piece, best)), more=more, essential=best.essential)


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
        """All of them, until the limit is reached."""
        yield from self._from(0, _Match())

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
            told, essential = (*told, _attributes_told(known, there)), True
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
            place = match.place_of.get(wanted.source)
            if place is not None:
                return place == there.source
            label = self._known.vertices[wanted.source].label
            return self._piece.vertices[there.source].label == label
        if there == "none":
            return False
        if match.bound.setdefault(wanted.source, there) != there:
            return False
        return self._type_fits(match, reader, source, there)

    def _type_fits(self, match: _Match, reader: Vertex, source: Vertex, there: Operand) -> bool:
        wanted = source.label.partition(" ")[2]
        if isinstance(there, str):
            remark = f"an input of {reader.label} is a constant here, fed there"
            if remark not in match.told:
                match.told += (remark,)
            found = there.removeprefix("const ")
        else:
            found = _element_type(self._piece.vertices[there.source], there.slot) or wanted
        return found == wanted or self._allowed(match, f"{found} here, {wanted} there")

    def _allowed(self, match: _Match, difference: str) -> bool:
        """Note a difference that may be what matters; False where none such is allowed."""
        if self._strictly:
            return False
        if difference not in match.told:
            match.told += (difference,)
        match.essential = True
        return True


def _element_type(vertex: Vertex, slot: int) -> str:
    """Of what is read there; "" where nobody knows."""
    if vertex.label.startswith("input "):
        return vertex.label.partition(" ")[2]
    return vertex.types[slot] if slot < len(vertex.types) else ""


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


def _beyond(known: Pattern, piece: Pattern, match: _Match) -> Iterator[str]:
    """What else there is in the piece."""
    mapped = set(match.place_of.values())
    more = [piece.vertices[place].label for place in piece.nodes if place not in mapped]
    if more:
        yield f"{count(len(more), 'node')} more here: {first_of(more, _MOST_NAMED)}"
    inner = _read_inside(known)
    for place, slot in sorted(inner):
        there = match.place_of[place]
        if slot in piece.vertices[there].results or _readers(piece, Tensor(there, slot)) > _readers(
            known, Tensor(place, slot)
        ):
            yield f"what {known.vertices[place].label} makes is read by others too, or an output, here"
    dangling = [one for one in piece.vertices if one.label.startswith("output ")]
    if dangling:
        yield f"{count(len(dangling), 'output')} here {'is a constant' if len(dangling) == 1 else 'are constants'}"


def _read_inside(known: Pattern) -> set[Tensor]:
    """Tensors that only the known nodes read."""
    return {
        operand
        for one in known.vertices
        for operand in one.operands
        if isinstance(operand, Tensor)
        and known.vertices[operand.source].is_node
        and operand.slot not in known.vertices[operand.source].results
    }


def _readers(pattern: Pattern, tensor: Tensor) -> int:
    return sum(operand == tensor for one in pattern.vertices for operand in one.operands)


def _attributes_told(known: Vertex, there: Vertex) -> str:
    here = first_of([one for one in there.attributes if one not in known.attributes] or ["the default"], _MOST_NAMED)
    known_ones: Sequence[str] = [one for one in known.attributes if one not in there.attributes] or ["the default"]
    return f"{known.label} has {here} here, {first_of(known_ones, _MOST_NAMED)} there"


def _words(operand: str) -> str:
    return "nothing as an input" if operand == "none" else f"a constant of {operand.removeprefix('const ')}"
