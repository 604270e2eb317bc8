"""Where the answers change along a row of items, some of which may have no answer.

A row is asked place by place. What it answers is a side: True, False, or None where nobody can tell. A border lies
between two places of different sides with nothing between them but places of which nobody can tell, all of them asked.
So every border that is told is a true one, whether or not the answers are monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias, TypeVar

from biopsy.search.drive import RunningSearch, Search
from biopsy.search.subset import doubled, least

Side: TypeAlias = bool | None
"""What a place answers: which of two, or None where nobody can tell."""

_Result = TypeVar("_Result")

Asking: TypeAlias = Search[int, Mapping[int, Side], _Result]
"""A search whose rounds are places of a row; it is sent the side of each."""

_PROBES, _PROBES_WITHOUT_BORDER = 3, 6
"""Places that are asked besides, in the widest gaps, so that a second change is noticed."""


@dataclass(frozen=True, kw_only=True)
class RowBorder:
    """Two places of different sides; nobody can tell of those between them, if there are any."""

    before: int
    after: int


class AnswerRow:
    """Places from 0 to ``length`` - 1, and what is known of their sides."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.known: dict[int, Side] = {}

    def ask(self, places: Iterable[int]) -> Asking[None]:
        """Ask those places that were not asked before, in one round."""
        fresh = [place for place in dict.fromkeys(places) if place not in self.known]
        if fresh:
            answers = yield fresh
            self.known.update(answers or {})

    @property
    def told(self) -> list[int]:
        """The places whose side is known, in their order."""
        return sorted(place for place, side in self.known.items() if side is not None)

    def borders(self) -> list[RowBorder]:
        """All borders that are known, in their order."""
        return [RowBorder(before=low, after=high) for low, high in self._changes() if not self._open(low, high)]

    def _changes(self) -> Iterator[tuple[int, int]]:
        return ((low, high) for low, high in pairwise(self.told) if self.known[low] != self.known[high])

    def _open(self, low: int, high: int) -> list[int]:
        return [place for place in range(low + 1, high) if place not in self.known]

    # What is asked

    def settle(self) -> Asking[None]:
        """Ask by halves until there is a border wherever sides change."""
        while wide := next(((low, high) for low, high in self._changes() if self._open(low, high)), None):
            low, high = wide
            untold = [place for place in range(low + 1, high) if place in self.known]
            shunned = set[int]()  # what is near a run of places of which nobody can tell, as near as the run is long
            for _, run in groupby(enumerate(untold), lambda numbered: numbered[1] - numbered[0]):
                places = [place for _, place in run]
                shunned.update(range(places[0] - len(places), places[-1] + len(places) + 1))
            between = self._open(low, high)
            row = [low, *([place for place in between if place not in shunned] or between), high]
            yield from self._halve(row, lambda place: self.known[place] == self.known[high], {None})  # noqa: B023

    def _halve(self, row: Sequence[int], holds: Callable[[int], bool], ends: Container[Side]) -> Asking[None]:
        """Ask by halves for the first place of a row that ``holds``: not the first, else the last.

        It ends early at a place that answers one of ``ends``.
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
        """From ``start``, whose side is known, towards ``end`` in steps that double, to a place of the other side.

        None if there is none on the way. Where nobody can tell from some place on, that is sought by halves.
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
            told, untold = way[last], way[last + 1]
            row = range(told, untold + step, step)
            yield from self._halve(row, lambda place: self.known[place] is None, {not self.known[told]})
        return next((place for place in range(start, end + step, step) if self._differ(start, place)), None)

    def _differ(self, one: int, other: int) -> bool:
        sides = {self.known.get(one), self.known.get(other)}
        return sides == {True, False}

    def probe(self) -> Asking[None]:
        """Ask some places in the widest gaps, so that a second change may be noticed, and settle what they show.

        A gap stands between places that are asked; of one of its ends somebody can tell.
        """
        places: list[int] = []
        for _ in range(_PROBES if self.borders() else _PROBES_WITHOUT_BORDER):
            told, ends = {*self.told, *places}, [-1, *sorted({*self.known, *places}), self.length]
            gaps = (range(low + 1, high) for low, high in pairwise(ends) if low in told or high in told)
            widest = max(gaps, key=len, default=range(0))
            if widest:
                places.append(widest[len(widest) // 2])
        yield from self.ask(places)
        yield from self.settle()


def change_between(row: AnswerRow, one: int, other: int) -> Asking[None]:
    """Look for changes between two ends that a person named: both first, then by halves."""
    yield from row.ask([one])
    yield from row.ask([other])
    if row.known[one] is not None and not row._differ(one, other):
        yield from row.walk(one, other)
    yield from row.settle()
    yield from row.probe()


def changes_around(row: AnswerRow, start: int) -> Asking[None]:
    """Look for the changes before and after a place: the newest one is asked, older ones in steps that double.

    If ``start`` is False, and so is all up to the first True before it, it goes on to the next False before that.
    Where nobody can tell of ``start``, it begins at the nearest place before it of which somebody can, else after it.
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
    if oldest is not None and row.known[oldest]:
        yield from row.walk(oldest, 0)
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
        if row.known[place]:
            return
    if row.known[start] is not None:
        yield from row.walk(start, 0 if end is None else end)


def asked_next(begin: Callable[[AnswerRow], Asking[None]], row: AnswerRow, asked: Mapping[int, Side]) -> list[int]:
    """The places that a search asks next if those of its round answer as ``asked``; none if it ends then.

    ``begin`` starts the search with a row, which is a fresh one: the search is run again over what ``row`` knows.
    """
    answers = {**row.known, **asked}
    running = RunningSearch(begin(AnswerRow(row.length)))
    while running.round is not None:
        places = list(running.round)
        if any(place not in answers for place in places):
            return places
        running.reply({place: answers[place] for place in places})
    return []
