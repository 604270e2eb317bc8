"""Find where the answers change along a row of items, some of which may have no answer.

The items of a row are places, numbered from 0. The answer of a place is its side: True, False, ANOTHER, or None if it
could not be determined. A border is a pair of places with different sides, where every place between them was asked and
had no answer. So every border reported is real, whether or not the answers are monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Literal, TypeAlias, TypeVar

from biopsy.search.drive import RunningSearch, Search
from biopsy.search.subset import doubled, least

ANOTHER: Final = "another"
"""The side of a place that is neither True nor False: what was looked for is not there, and something else is."""

Side: TypeAlias = bool | Literal["another"] | None
"""The answer of a place: one of three sides, or None if it could not be determined."""

_Result = TypeVar("_Result")

Asking: TypeAlias = Search[int, Mapping[int, Side], _Result]
"""A search whose rounds are places of a row; the reply holds the side of each."""

_PROBES, _PROBES_WITHOUT_BORDER = 3, 6
"""How many more places are asked, in the widest gaps, to notice a second change."""


@dataclass(frozen=True, kw_only=True)
class RowBorder:
    """Two places of different sides; the places between them, if any, have no answer."""

    before: int
    after: int


class AnswerRow:
    """The places from 0 to ``length`` - 1, with the sides known so far."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.known: dict[int, Side] = {}

    def ask(self, places: Iterable[int]) -> Asking[None]:
        """Ask, in one round, the places that were not asked before."""
        fresh = [place for place in dict.fromkeys(places) if place not in self.known]
        if fresh:
            answers = yield fresh
            self.known.update(answers or {})

    @property
    def answered(self) -> list[int]:
        """The places whose side is known, ascending."""
        return sorted(place for place, side in self.known.items() if side is not None)

    def borders(self) -> list[RowBorder]:
        """All borders known so far, in order."""
        return [RowBorder(before=low, after=high) for low, high in self._changes() if not self._not_asked(low, high)]

    def _changes(self) -> Iterator[tuple[int, int]]:
        return ((low, high) for low, high in pairwise(self.answered) if self.known[low] != self.known[high])

    def _not_asked(self, low: int, high: int) -> list[int]:
        return [place for place in range(low + 1, high) if place not in self.known]

    def settle(self) -> Asking[None]:
        """Bisect every change of sides until it is a border."""
        while change := next(((low, high) for low, high in self._changes() if self._not_asked(low, high)), None):
            low, high = change
            unanswered = [place for place in range(low + 1, high) if place in self.known]
            avoided = set[int]()  # places near a run of unanswered places, within the length of that run
            for _, run in groupby(enumerate(unanswered), lambda numbered: numbered[1] - numbered[0]):
                places = [place for _, place in run]
                avoided.update(range(places[0] - len(places), places[-1] + len(places) + 1))
            between = self._not_asked(low, high)
            row = [low, *([place for place in between if place not in avoided] or between), high]
            yield from self._halve(row, lambda place: self.known[place] == self.known[high], {None})  # noqa: B023

    def _halve(self, row: Sequence[int], holds: Callable[[int], bool], ends: Container[Side]) -> Asking[None]:
        """Bisect a row for its first place that ``holds``. The first place is known not to hold, the last one to hold.

        Ends early at a place whose answer is in ``ends``.
        """
        search: RunningSearch[int, int, tuple[int, int | None]] = RunningSearch(
            least(0, len(row) - 1, row.__getitem__, float)
        )
        while search.round is not None:
            (place,) = search.round
            yield from self.ask([place])
            if self.known[place] in ends:
                return
            search.reply(place if holds(place) else None)

    def walk(self, start: int, end: int) -> Asking[int | None]:
        """Go from ``start``, whose side is known, towards ``end`` in doubling steps; return a place of the other side.

        Returns None if there is none. If all places from some point on have no answer, that point is found by
        bisection.
        """
        step = 1 if end > start else -1
        for distance in doubled(abs(end - start)):
            place = start + step * distance
            yield from self.ask([place])
            if self._differ(start, place):
                return place
        way = [place for place in range(start, end + step, step) if place in self.known]
        last = max(place for place in range(len(way)) if self.known[way[place]] is not None)
        if last + 1 < len(way):
            answered, unanswered = way[last], way[last + 1]
            row = range(answered, unanswered + step, step)
            others: set[Side] = {True, False, ANOTHER}
            others.remove(self.known[answered])
            yield from self._halve(row, lambda place: self.known[place] is None, others)
        return next((place for place in range(start, end + step, step) if self._differ(start, place)), None)

    def _differ(self, one: int, other: int) -> bool:
        sides = {self.known.get(one), self.known.get(other)}
        return None not in sides and len(sides) == 2

    def probe(self) -> Asking[None]:
        """Ask places in the middle of the widest gaps to notice a second change, and settle what they show.

        A gap is a run of places not asked; at least one of the places at its ends has an answer.
        """
        places: list[int] = []
        for _ in range(_PROBES if self.borders() else _PROBES_WITHOUT_BORDER):
            answered, ends = {*self.answered, *places}, [-1, *sorted({*self.known, *places}), self.length]
            gaps = (range(low + 1, high) for low, high in pairwise(ends) if low in answered or high in answered)
            widest = max(gaps, key=len, default=range(0))
            if widest:
                places.append(widest[len(widest) // 2])
        yield from self.ask(places)
        yield from self.settle()


def change_between(row: AnswerRow, one: int, other: int) -> Asking[None]:
    """Look for changes between two given ends: ask both, then bisect."""
    yield from row.ask([one])
    yield from row.ask([other])
    if row.known[one] is not None and not row._differ(one, other):
        yield from row.walk(one, other)
    yield from row.settle()
    yield from row.probe()


def changes_around(row: AnswerRow, start: int) -> Asking[None]:
    """Look for the changes before and after a place: ask the newest place, then older ones in doubling steps.

    If ``start`` is False, and so is everything back to the first place of another side, the search goes on to the next
    False before that. If ``start`` has no answer, it begins at the nearest earlier place with one, else at a later one.
    """
    order = [*range(start, -1, -1), *range(start + 1, row.length)]
    for place in order:
        yield from row.ask([place])
        if row.known[place] is not None:
            break
    else:
        return
    yield from row.ask([row.length - 1])
    yield from row.settle()
    oldest = yield from row.walk(place, 0)
    while oldest is not None and row.known[oldest] is not False:
        oldest = yield from row.walk(oldest, 0)
    yield from row.settle()
    yield from row.probe()


def all_changes(row: AnswerRow, start: int) -> Asking[None]:
    """Ask every place, ``start`` first."""
    yield from row.ask([start])
    yield from row.ask(range(row.length))


def first_that_holds(row: AnswerRow, start: int, end: int | None = None) -> Asking[None]:
    """Ask until a place is True: ``start``, the newest place, older ones in steps that double; or ``end``."""
    for place in (start, row.length - 1 if end is None else end):
        yield from row.ask([place])
        if row.known[place] is True:
            return
    if row.known[start] is not None:
        yield from row.walk(start, 0 if end is None else end)


def asked_next(begin: Callable[[AnswerRow], Asking[None]], row: AnswerRow, asked: Mapping[int, Side]) -> list[int]:
    """The places that a search asks next if its current round is answered with ``asked``; empty if it ends then.

    ``begin`` starts the search on a fresh row: the search is replayed with what ``row`` knows.
    """
    answers = {**row.known, **asked}
    running = RunningSearch(begin(AnswerRow(row.length)))
    while running.round is not None:
        places = list(running.round)
        if any(place not in answers for place in places):
            return places
        running.reply({place: answers[place] for place in places})
    return []
