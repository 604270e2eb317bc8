"""Lookahead: what a search may ask, the likely before the unlikely."""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import Foreseeable, Future, Odds, drive, foresee_any, likely_questions
from biopsy.search.subset import least, minimize_subset, minimize_subset_singly
from support.subset_predicates import Predicate, arbitrary

Begin = Callable[[int], Generator[Iterable[Any], Any, object]]
SEARCHES = pytest.mark.parametrize(
    "begin",
    [
        lambda count: minimize_subset(range(count), list),
        lambda count: minimize_subset_singly(range(count), list),
        lambda count: least(0, count, lambda length: list(range(length))),
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


def at_first(begin: Callable[[], Any], answers: list[Any]) -> Future[Any, Any, Any]:
    """A search after some answers, answered with one of its proposals or None."""

    def questions(proposals: Iterable[Any], _: object) -> Generator[Any, None, None]:
        yield from proposals

    return Future(Foreseeable(begin=begin, questions=questions, held=lambda proposal: proposal), answers)


@SEARCHES
@given(count=st.integers(1, 40), seed=st.integers(0, 1 << 30), known=st.integers(0, 100))
def test_where_the_likely_comes_true_the_questions_are_foreseen_in_their_order(
    begin: Begin, count: int, seed: int, known: int
) -> None:
    predicate = arbitrary(count, seed)
    proposals, answers = answered(begin, count, predicate)
    known = min(known, len(answers))
    likely = likely_questions(
        at_first(lambda: begin(count), answers[:known]), lambda proposal: 0.999 if predicate.of(proposal) else 0.001
    )
    rest = proposals[known:]
    assert list(islice(likely, len(rest))) == rest


@SEARCHES
@given(count=st.integers(2, 40), seed=st.integers(0, 1 << 30), data=st.data())
def test_what_is_known_is_not_asked_again_and_leads_to_what_is_asked_then(
    begin: Begin, count: int, seed: int, data: st.DataObject
) -> None:
    predicate = arbitrary(count, seed)
    proposals, _ = answered(begin, count, predicate)
    known = data.draw(st.integers(0, len(proposals)))

    def chance(proposal: list[int]) -> float:
        return float(predicate.of(proposal)) if proposal in proposals[:known] else 0.5

    unknown = [proposal for proposal in proposals if proposal not in proposals[:known]]
    assert list(islice(likely_questions(at_first(lambda: begin(count), []), chance), 1)) == unknown[:1]


@SEARCHES
@given(count=st.integers(2, 40), seed=st.integers(0, 1 << 30))
def test_behind_each_answer_stands_the_next_question(begin: Begin, count: int, seed: int) -> None:
    predicate = arbitrary(count, seed)
    proposals, answers = answered(begin, count, predicate)
    future = at_first(lambda: begin(count), [])
    for proposal, answer in zip(proposals, answers, strict=True):
        assert future.question == proposal
        wrong, future = future.behind(answer is None), future.behind(answer is not None)
        assert wrong.question != proposal
    assert future.question is None


def test_what_is_more_likely_to_be_asked_is_foreseen_sooner() -> None:
    """Of three answers in a row, each of which is 3 times as likely to be None."""

    def search() -> Generator[Iterable[str], str | None, None]:
        way = ""
        while len(way) < 3:
            way += "n" if (yield [way]) is None else "h"

    asked = list(likely_questions(at_first(search, []), lambda proposal: 0.25))
    assert asked == ["", "n", "nn", "h", "nh", "hn", "hh"]


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
    assert list(foresee_any(begin, [None])) == []


def test_proposals_behind_one_that_surely_holds_are_not_foreseen() -> None:
    def pairs() -> Generator[Iterable[int], int | None, None]:
        yield [1, 2]
        yield [3, 4]

    asked = likely_questions(at_first(pairs, []), lambda number: 1.0 if number == 1 else 0.5)
    assert list(asked) == [3, 4]


def test_a_search_that_never_comes_to_a_question_is_given_up() -> None:
    def endless() -> Generator[Iterable[int], int | None, None]:
        while True:
            yield []

    assert at_first(endless, []).question is None


def test_even_chances_stay_even_and_others_follow_the_newest_answers() -> None:
    odds = Odds()
    assert odds.chance == 0.5
    for _ in range(50):
        odds.add(held=False)
    assert odds.chance < 0.1
    for _ in range(8):
        odds.add(held=True)
    assert odds.chance > 0.5
