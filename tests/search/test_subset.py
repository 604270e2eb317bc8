"""Minimizing a subset: what it ends at, and how many questions that takes."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimize_subset, minimize_subset_singly, minimized
from support.subset_predicates import Predicate, arbitrary, counts_and_wanted, needing


def is_one_minimal(subset: list[int], predicate: Predicate) -> bool:
    return not any(predicate.of(set(subset) - {item}) for item in subset)


@given(counts_and_wanted(most=200, most_wanted=6))
def test_of_a_monotone_predicate_exactly_the_needed_items_are_left_in_their_order(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    assert drive(minimize_subset(range(count), list), first_that(needing(wanted))) == sorted(wanted)


@given(counts_and_wanted(most=500, most_wanted=8))
def test_questions_are_few_where_few_items_are_needed(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    predicate = needing(wanted)
    drive(minimize_subset(range(count), list), first_that(predicate))
    assert len(predicate.asked) <= len(wanted) * (2 * ceil(log2(count / len(wanted) + 1)) + 2) + 1


@pytest.mark.parametrize("first", [0, 400, 990])
def test_neighbours_that_are_needed_together_cost_about_one_question_each(first: int) -> None:
    predicate = needing(range(first, first + 10))
    drive(minimize_subset(range(1000), list), first_that(predicate))
    assert len(predicate.asked) <= 2 * ceil(log2(1000)) + 2 * 10 + 2


@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_of_any_predicate_what_is_left_has_been_seen_to_hold(count: int, seed: int) -> None:
    predicate = arbitrary(count, seed)
    left = drive(minimize_subset(range(count), list), first_that(predicate))
    assert len(left) == count or (frozenset(left) in predicate.asked and predicate.of(left))


@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_singly_nothing_can_be_left_out_of_what_is_left_whatever_the_predicate(count: int, seed: int) -> None:
    predicate = arbitrary(count, seed)
    left = drive(minimize_subset_singly(range(count), list), first_that(predicate))
    assert predicate.of(left)
    assert len(left) == 1 or is_one_minimal(left, predicate)


@given(counts_and_wanted(most=200, most_wanted=6))
def test_singly_costs_one_question_more_for_each_item_that_is_left(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    by_halves, singly = needing(wanted), needing(wanted)
    drive(minimize_subset(range(count), list), first_that(by_halves))
    assert drive(minimize_subset_singly(range(count), list), first_that(singly)) == sorted(wanted)
    assert len(singly.asked) <= len(by_halves.asked) + len(wanted)


@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_the_same_answers_lead_to_the_same_questions(count: int, seed: int) -> None:
    first, second = arbitrary(count, seed), arbitrary(count, seed)
    for predicate in (first, second):
        drive(minimize_subset_singly(range(count), list), first_that(predicate))
    assert first.asked == second.asked


def test_items_are_any_hashables_and_keep_their_order() -> None:
    left = drive(minimize_subset("syzygy"[:3], "".join), first_that(lambda some: "s" in some and "z" in some))
    assert left == ["s", "z"]


def test_where_the_empty_subset_holds_nothing_is_left_after_one_question() -> None:
    predicate = needing(())
    assert drive(minimize_subset(range(9), list), first_that(predicate)) == []
    assert len(predicate.asked) == 1


@given(counts_and_wanted(most=50, most_wanted=4))
def test_at_least_one_item_is_left_where_that_is_asked_for(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    predicate, indifferent = needing(wanted), needing(())
    assert minimized(range(count), predicate) == sorted(wanted)
    assert len(minimized(range(count), indifferent)) == 1
    assert frozenset() not in {*predicate.asked, *indifferent.asked}


def test_of_no_items_nothing_is_asked() -> None:
    predicate = needing(())
    assert minimized([], predicate) == []
    assert not predicate.asked
