"""Removing items one by one, and in runs that grow."""

import contextlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import drive, first_that
from biopsy.search.subset import remove_each, remove_in_runs, remove_singly
from support.subset_predicates import Predicate, arbitrary, counts_and_wanted, needing

Target = frozenset[int]
REMOVALS = pytest.mark.parametrize("remove", [remove_singly, remove_in_runs], ids=["singly", "in-runs"])


def without(target: Target, gone: Sequence[int]) -> list[Target]:
    return [target.difference(gone)]


def removed(remove: Callable[..., object], count: int, predicate: Predicate) -> Target:
    search = remove(range(count), frozenset(range(count)), without, lambda target: target)
    return drive(search, first_that(predicate))


@REMOVALS
@given(case=counts_and_wanted(most=60, most_wanted=6))
def test_of_a_monotone_predicate_exactly_the_needed_items_are_left(
    remove: Callable[..., object], case: tuple[int, set[int]]
) -> None:
    count, wanted = case
    predicate = needing(wanted)
    assert removed(remove, count, predicate) == wanted
    assert len(predicate.asked) <= count + 2 * len(wanted)


@REMOVALS
@given(count=st.integers(1, 40), seed=st.integers(0, 1 << 30))
def test_of_any_predicate_what_is_left_has_been_seen_to_hold(
    remove: Callable[..., object], count: int, seed: int
) -> None:
    predicate = arbitrary(count, seed)
    left = removed(remove, count, predicate)
    assert len(left) == count or (left in predicate.asked and predicate.of(left))


def test_in_runs_that_double_little_is_asked_where_everything_can_go() -> None:
    predicate = needing(())
    assert removed(remove_in_runs, 1000, predicate) == set()
    assert len(predicate.asked) == 10


@pytest.mark.parametrize("wanted", [0, 500, 999])
def test_runs_grow_again_behind_an_item_that_must_stay(wanted: int) -> None:
    predicate = needing({wanted})
    assert removed(remove_in_runs, 1000, predicate) == {wanted}
    assert len(predicate.asked) <= 60


def test_what_came_back_goes_with_the_next_item() -> None:
    """Items 4 and 3 can go together only: without 4 alone it comes back, as a target equal to the last one."""
    asked: list[Target] = []

    def answer(proposals: list[Target]) -> Target:
        (proposal,) = proposals
        asked.append(proposal)
        return proposal | {4} if 3 in proposal else proposal

    start = frozenset(range(5))
    search = remove_singly([4, 3], start, without, lambda target: target)
    assert drive(search, answer) == {0, 1, 2}
    assert asked == [{0, 1, 2, 3}, {0, 1, 2}]


def test_an_item_that_went_along_with_another_is_not_asked_about() -> None:
    asked: list[Target] = []

    def answer(proposals: list[Target]) -> Target:
        (proposal,) = proposals
        asked.append(proposal)
        return proposal - {2}

    search = remove_singly([3, 2, 1], frozenset({1, 2, 3}), without, lambda target: target)
    assert drive(search, answer) == set()
    assert asked == [{1, 2}, set()]


@given(counts_and_wanted(most=40, most_wanted=5))
def test_each_item_is_asked_about_once_in_the_order_given(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    predicate = needing(wanted)
    left = drive(remove_each(range(count), range(count), list), first_that(predicate))
    assert left == sorted(wanted)
    assert len(predicate.asked) == count - (len(wanted) == 1 and max(wanted) == count - 1)


def test_the_last_item_stays() -> None:
    predicate = needing(())
    assert drive(remove_each([1, 2, 3], [1, 2, 3], list), first_that(predicate)) == [3]
    assert frozenset() not in predicate.asked


@pytest.mark.parametrize("tied", [1, 2, 5, 64, 1000])
def test_items_that_come_back_together_are_proposed_once_together(tied: int) -> None:
    asked = 0

    def without(target: frozenset[int], gone: Sequence[int]) -> list[frozenset[int]]:
        return [target.difference(gone)]

    def comes_back(target: frozenset[int], gone: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return len(target) - tied < len(target.difference(gone))

    everything = frozenset(range(1000))
    search = remove_singly(range(1000), everything, without, lambda target: target, comes_back)
    rounds = []
    with contextlib.suppress(StopIteration):
        [proposal] = next(search)
        while True:
            rounds.append(len(proposal))
            [proposal] = search.send(None)
    assert rounds == [1000 - tied] * (1000 // tied)
    assert asked < 1500 * (2 if tied == 1 else 1)
