"""Lookahead: what a search will ask, if guesses are right, or whatever the answers are."""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import drive
from biopsy.search.lookahead import foresee, foresee_any
from biopsy.search.prefix import shortest_prefix
from biopsy.search.subset import minimize_subset, minimize_subset_singly
from support.subset_predicates import Predicate, arbitrary

Begin = Callable[[int], Generator[Iterable[Any], Any, object]]
SEARCHES = pytest.mark.parametrize(
    "begin",
    [
        lambda count: minimize_subset(range(count), list),
        lambda count: minimize_subset_singly(range(count), list),
        lambda count: shortest_prefix(count, lambda length: list(range(length))),
    ],
    ids=["subset", "singly", "prefix"],
)


def answered(begin: Begin, count: int, predicate: Predicate) -> tuple[list[list[int]], list[list[int] | None]]:
    """What a search proposes, one a round, and its answers."""
    proposals, answers = [], []

    def answer(proposed: Iterable[list[int]]) -> list[int] | None:
        (proposal,) = proposed
        proposals.append(proposal)
        answers.append(proposal if predicate(proposal) else None)
        return answers[-1]

    drive(begin(count), answer)
    return proposals, answers


def guessing(
    holds: Callable[[list[int]], bool],
) -> Callable[[Iterable[list[int]]], Generator[list[int], None, list[int] | None]]:
    def guess(proposals: Iterable[list[int]]) -> Generator[list[int], None, list[int] | None]:
        for proposal in proposals:
            yield proposal
            if holds(proposal):
                return proposal
        return None

    return guess


@SEARCHES
@given(count=st.integers(1, 40), seed=st.integers(0, 1 << 30), known=st.integers(0, 100))
def test_with_right_guesses_the_questions_are_foreseen_exactly(begin: Begin, count: int, seed: int, known: int) -> None:
    predicate = arbitrary(count, seed)
    proposals, answers = answered(begin, count, predicate)
    known = min(known, len(answers))
    foreseen = list(foresee(lambda: begin(count), answers[:known], guessing(predicate.of)))
    assert foreseen == proposals[known:][: len(foreseen)]
    assert len(foreseen) == min(64, len(proposals) - known)


@SEARCHES
@given(count=st.integers(2, 40), seed=st.integers(0, 1 << 30), data=st.data())
def test_up_to_the_first_wrong_guess_the_questions_are_right(
    begin: Begin, count: int, seed: int, data: st.DataObject
) -> None:
    predicate = arbitrary(count, seed)
    proposals, answers = answered(begin, count, predicate)
    right = data.draw(st.integers(0, len(answers)))
    guesses = iter([*(answer is not None for answer in answers[:right])])
    foreseen = foresee(lambda: begin(count), [], guessing(lambda proposal: next(guesses, not predicate.of(proposal))))
    assert list(islice(foreseen, right + 1))[:64] == proposals[: right + 1][:64]


@SEARCHES
@given(count=st.integers(2, 40), seed=st.integers(0, 1 << 30), data=st.data())
def test_whatever_the_answers_are_the_next_questions_are_among_the_first_foreseen(
    begin: Begin, count: int, seed: int, data: st.DataObject
) -> None:
    proposals, answers = answered(begin, count, arbitrary(count, seed))
    known = data.draw(st.integers(0, len(answers)))
    foreseen = list(foresee_any(lambda: begin(count), answers[:known]))
    assert foreseen[:1] == proposals[known : known + 1]
    if known + 1 < len(proposals):
        assert proposals[known + 1] in foreseen[:3]
    if known + 2 < len(proposals):
        assert proposals[known + 2] in foreseen[:7]


def test_a_search_that_has_ended_asks_nothing_more() -> None:
    begin = lambda: minimize_subset([1], list)  # noqa: E731 -- a search of one question
    assert list(foresee(begin, [None], guessing(bool))) == []
    assert list(foresee_any(begin, [None])) == []


def test_proposals_of_a_round_behind_the_one_guessed_to_hold_are_not_foreseen() -> None:
    def pairs() -> Generator[Iterable[list[int]], list[int] | None, None]:
        yield [[1], [2]]
        yield [[3], [4]]

    assert list(foresee(pairs, [], guessing(lambda proposal: proposal == [1]))) == [[1], [3], [4]]
