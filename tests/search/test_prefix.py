"""Prefixes: the shortest that holds by halves, and proposals in turn."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import drive, first_that
from biopsy.search.prefix import doubled, in_turn, shortest_prefix


@given(st.integers(1, 2000).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))), st.booleans())
def test_the_shortest_prefix_is_found_in_about_log_n_questions(case: tuple[int, int], from_end: bool) -> None:
    count, shortest = case
    asked: list[int] = []

    def holds(length: int) -> bool:
        asked.append(length)
        return length >= shortest

    found, last = drive(shortest_prefix(count, int, from_end=from_end), first_that(holds))
    assert (found, last) == (shortest, shortest if shortest < count else None)
    assert len(asked) <= ceil(log2(count)) * (2 if from_end else 1)
    assert 0 not in asked
    assert count not in asked


@pytest.mark.parametrize("gone", [0, 1, 3, 20])
def test_from_the_end_little_is_asked_where_little_can_go(gone: int) -> None:
    asked: list[int] = []

    def holds(length: int) -> bool:
        asked.append(length)
        return length >= 100_000 - gone

    assert drive(shortest_prefix(100_000, int, from_end=True), first_that(holds))[0] == 100_000 - gone
    assert len(asked) <= 2 * ceil(log2(gone + 2))


@given(st.integers(1, 300), st.sets(st.integers(1, 299)), st.booleans())
def test_of_any_predicate_what_is_found_holds_and_one_less_does_not(
    count: int, holding: set[int], from_end: bool
) -> None:
    answers: dict[int, bool] = {0: False, count: True}

    def holds(length: int) -> bool:
        return answers.setdefault(length, length in holding)

    found, _ = drive(shortest_prefix(count, int, from_end=from_end), first_that(holds))
    assert answers[found]
    assert not answers[found - 1]


def test_of_no_items_nothing_is_asked() -> None:
    assert drive(shortest_prefix(0, int), first_that(bool)) == (0, None)


def test_proposals_are_made_in_turn_until_one_holds() -> None:
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number == 3

    assert drive(in_turn([1, 3, 5]), first_that(holds)) == 3
    assert asked == [1, 3]
    assert drive(in_turn([1, 5]), first_that(holds)) is None


@pytest.mark.parametrize(
    ("length", "lengths"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_doubled_lengths_end_at_the_whole(length: int, lengths: list[int]) -> None:
    assert list(doubled(length)) == lengths
