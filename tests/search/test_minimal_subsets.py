"""All minimal subsets that hold, against trying all subsets."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subset, minimal_subsets, shortest
from support.subset_predicates import counts_and_wanted, needing


def planted(seed: int, items: int = 9) -> list[frozenset[int]]:
    """Sets none of which holds another."""
    rng = random.Random(seed)
    drawn = {frozenset(rng.sample(range(items), rng.randint(1, 3))) for _ in range(rng.randint(1, 5))}
    return [subset for subset in drawn if not any(other < subset for other in drawn)]


@pytest.mark.parametrize("seed", range(40))
def test_all_minimal_sets_are_found_and_nothing_else(seed: int) -> None:
    truth = planted(seed)

    def holds(items: list[int]) -> bool:
        return any(subset <= set(items) for subset in truth)

    found, complete = drive(minimal_subsets(range(9), 12), first_that(holds))
    assert complete and {frozenset(subset) for subset in found} == set(truth) and len(found) == len(truth)
    least = min(map(len, truth))
    assert {frozenset(subset) for subset in shortest(found)} == {subset for subset in truth if len(subset) == least}


def test_a_search_that_is_ended_says_so() -> None:
    found, complete = drive(minimal_subsets(range(8), 12), first_that(lambda items: len(items) > 1))
    assert len(found) == 12 and not complete and len(list(combinations(range(8), 2))) == 28


def test_where_nothing_holds_there_is_none() -> None:
    assert drive(minimal_subsets(range(8), 12), first_that(lambda items: False)) == ([], True)
    assert drive(minimal_subsets([], 12), first_that(lambda items: True)) == ([], True)


@given(counts_and_wanted(most=60, most_wanted=5), st.booleans())
def test_a_minimal_subset_is_what_is_needed_or_none_if_not_all_items_are_enough(
    case: tuple[int, set[int]], enough: bool
) -> None:
    count, wanted = case
    predicate = needing(wanted if enough else {*wanted, count})
    found = drive(minimal_subset(range(count)), first_that(predicate))
    assert found == (sorted(wanted) if enough else None)
    assert len(predicate.asked) > 1 or not enough or count == 1
