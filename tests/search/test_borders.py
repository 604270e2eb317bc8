"""Borders in a row of answers: whatever the answers are, what is told is true, and few places are asked."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.borders import (
    ANOTHER,
    AnswerRow,
    Asking,
    RowBorder,
    Side,
    all_changes,
    asked_next,
    change_between,
    changes_around,
)
from biopsy.search.drive import drive

SIDES = st.lists(st.sampled_from([True, False, ANOTHER, None]), min_size=1, max_size=40)
WAYS = ["around", "between", "all"]


def search(way: str, row: AnswerRow, start: int) -> Asking[None]:
    if way == "between":
        return change_between(row, row.length - 1, 0)
    return changes_around(row, start) if way == "around" else all_changes(row, start)


def asked(way: str, sides: Sequence[Side], start: int) -> tuple[AnswerRow, list[int]]:
    row, places = AnswerRow(len(sides)), list[int]()

    def answer(round_: Sequence[int]) -> Mapping[int, Side]:
        places.extend(round_)
        return {place: sides[place] for place in round_}

    drive(search(way, row, start), answer)
    return row, places


@pytest.mark.parametrize("way", WAYS)
@given(sides=SIDES, data=st.data())
def test_every_border_that_is_told_is_true_whatever_the_answers(
    way: str, sides: list[Side], data: st.DataObject
) -> None:
    row, places = asked(way, sides, data.draw(st.integers(0, len(sides) - 1)))
    for border in row.borders():
        assert None not in (sides[border.before], sides[border.after])
        assert sides[border.before] != sides[border.after]
        assert all(sides[place] is None and place in places for place in range(border.before + 1, border.after))


@pytest.mark.parametrize("way", WAYS)
@given(sides=SIDES, data=st.data())
def test_no_place_is_asked_twice_and_no_change_that_was_seen_is_left_open(
    way: str, sides: list[Side], data: st.DataObject
) -> None:
    row, places = asked(way, sides, data.draw(st.integers(0, len(sides) - 1)))
    assert len(places) == len(set(places))
    seen = [sides[place] for place in sorted(places) if sides[place] is not None]
    assert len(row.borders()) == sum(one != other for one, other in pairwise(seen))


@given(sides=SIDES)
def test_all_borders_are_found_if_every_place_is_asked(sides: list[Side]) -> None:
    row, places = asked("all", sides, 0)
    told = [place for place, side in enumerate(sides) if side is not None]
    assert sorted(places) == list(range(len(sides)))
    assert row.borders() == [
        RowBorder(before=low, after=high) for low, high in pairwise(told) if sides[low] != sides[high]
    ]


@given(sides=SIDES)
def test_a_change_between_two_ends_that_differ_is_always_found(sides: list[Side]) -> None:
    row, _ = asked("between", [True, *sides, False], 0)
    assert row.borders()


@given(case=st.integers(2, 400).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_one_change_between_two_ends_takes_log_n_questions_and_few_more(case: tuple[int, int]) -> None:
    count, change = case
    row, places = asked("between", [place >= change for place in range(count)], 0)
    assert row.borders() == [RowBorder(before=change - 1, after=change)]
    assert len(places) <= ceil(log2(count)) + 2 + 3


@given(case=st.integers(2, 400).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_one_change_some_way_back_takes_twice_the_logarithm_of_the_way(case: tuple[int, int]) -> None:
    count, change = case
    row, places = asked("around", [place >= change for place in range(count)], count - 1)
    assert row.borders() == [RowBorder(before=change - 1, after=change)]
    assert len(places) <= 2 * ceil(log2(count - change + 1)) + 2 * 3 + 2


@given(count=st.integers(2, 400), side=st.booleans())
def test_a_row_without_a_change_takes_log_n_questions_and_few_more(count: int, side: bool) -> None:
    row, places = asked("around", [side] * count, count - 1)
    assert not row.borders()
    assert len(places) <= ceil(log2(count)) + 2 + 6


def test_who_mended_it_is_found_and_who_broke_it() -> None:
    sides = [False] * 5 + [True] * 9 + [False] * 6
    row, _ = asked("around", sides, 19)
    assert row.borders() == [RowBorder(before=4, after=5), RowBorder(before=13, after=14)]


def test_a_run_of_which_nobody_can_tell_is_jumped_over_and_asked_whole_only_at_a_border() -> None:
    far: list[Side] = [False] * 10 + [True] * 20 + [None] * 20 + [True] * 14
    row, places = asked("between", far, 0)
    assert row.borders() == [RowBorder(before=9, after=10)]
    assert sum(far[place] is None for place in places) <= 6
    near: list[Side] = [False] * 22 + [None] * 20 + [True] * 22
    row, places = asked("between", near, 0)
    assert row.borders() == [RowBorder(before=21, after=42)]
    assert len(places) <= 20 + 2 * ceil(log2(64)) + 5


def test_where_nobody_can_tell_from_some_place_on_the_last_one_that_tells_is_found() -> None:
    sides: list[Side] = [None] * 11 + [False] * 2 + [True] * 27
    row, places = asked("around", sides, 39)
    assert row.borders() == [RowBorder(before=12, after=13)]
    assert len(places) <= 20


@pytest.mark.parametrize("way", WAYS)
@given(sides=SIDES, data=st.data())
def test_what_is_asked_next_is_foreseen(way: str, sides: list[Side], data: st.DataObject) -> None:
    row, start = AnswerRow(len(sides)), data.draw(st.integers(0, len(sides) - 1))
    foreseen: list[list[int]] = []
    rounds: list[list[int]] = []

    def answer(round_: Iterable[int]) -> Mapping[int, Side]:
        rounds.append(list(round_))
        answers = {place: sides[place] for place in rounds[-1]}
        foreseen.append(asked_next(lambda fresh: search(way, fresh, start), row, answers))
        return answers

    drive(search(way, row, start), answer)
    assert foreseen == [*rounds[1:], []]
