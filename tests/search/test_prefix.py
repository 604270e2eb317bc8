"""Prefixes: the shortest that holds by halves, and proposals in turn."""

from itertools import pairwise
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import Search, drive, first_that
from biopsy.search.subset import doubled, in_turn, least, near

LIKELIHOODS = pytest.mark.parametrize("near_start", [False, True], ids=["even", "near"])


def search(count: int, near_start: bool) -> Search[int, int, tuple[int, int | None]]:
    return least(0, count, int, likely=(lambda length: near(length, count)) if near_start else float)


@LIKELIHOODS
@given(case=st.integers(1, 2000).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))))
def test_the_shortest_prefix_is_found_in_about_log_n_questions(near_start: bool, case: tuple[int, int]) -> None:
    count, shortest = case
    asked: list[int] = []

    def holds(length: int) -> bool:
        asked.append(length)
        return length >= shortest

    found, last = drive(search(count, near_start), first_that(holds))
    assert (found, last) == (shortest, shortest if shortest < count else None)
    assert len(asked) <= ceil(log2(count)) + (3 if near_start else 0)
    assert 0 not in asked
    assert count not in asked


@pytest.mark.parametrize("shortest", [1, 2, 4, 20, 100])
def test_what_is_likely_to_be_short_is_found_sooner(shortest: int) -> None:
    asked: list[int] = []

    def holds(length: int) -> bool:
        asked.append(length)
        return length >= shortest

    assert drive(search(100_000, True), first_that(holds))[0] == shortest
    assert len(asked) <= log2(shortest) + 7


@LIKELIHOODS
@given(count=st.integers(1, 300), holding=st.sets(st.integers(1, 299)))
def test_of_any_predicate_what_is_found_holds_and_one_less_does_not(
    near_start: bool, count: int, holding: set[int]
) -> None:
    answers: dict[int, bool] = {0: False, count: True}

    def holds(length: int) -> bool:
        return answers.setdefault(length, length in holding)

    found, _ = drive(search(count, near_start), first_that(holds))
    assert answers[found]
    assert not answers[found - 1]


@given(st.integers(1, 10_000))
def test_the_likelihood_of_small_numbers_grows_from_nothing_to_all(length: int) -> None:
    grown = [near(taken, length) for taken in range(length + 1)]
    assert grown[0] == 0 and grown[-1] == 1
    assert all(less < more for less, more in pairwise(grown))


def test_of_no_items_nothing_is_asked() -> None:
    assert drive(least(0, 0, int), first_that(bool)) == (0, None)


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
