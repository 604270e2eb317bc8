"""Running a search: to its end, in steps, or within another search."""

from collections.abc import Generator, Iterable

import pytest

from biopsy.search.drive import RunningSearch, drive, first_that, nest


def counting(rounds: int) -> Generator[Iterable[int], int | None, list[int | None]]:
    """Proposes 0, then 1, ...; returns all answers."""
    answers: list[int | None] = []
    while len(answers) < rounds:
        answers += [(yield [len(answers)])]
    return answers


def test_a_search_is_sent_the_answer_to_each_round_and_its_result_is_returned() -> None:
    assert drive(counting(3), lambda proposals: next(iter(proposals)) * 10) == [0, 10, 20]


def test_a_search_without_rounds_is_asked_nothing() -> None:
    assert drive(counting(0), lambda _: pytest.fail("asked")) == []


def test_a_round_is_answered_with_the_first_proposal_that_holds() -> None:
    answer = first_that(lambda number: number > 1)
    assert answer([0, 2, 3]) == 2
    assert answer([0, 1]) is None


def test_proposals_behind_the_first_that_holds_are_not_made() -> None:
    def made() -> Iterable[int]:
        yield 1
        pytest.fail("made")

    assert first_that(bool)(made()) == 1


def test_a_stop_iteration_of_who_answers_is_not_taken_for_the_end_of_the_search() -> None:
    with pytest.raises(StopIteration):
        drive(counting(3), lambda _: next(iter(())))


def test_a_running_search_stands_at_its_first_round_and_goes_on_from_there() -> None:
    running = RunningSearch(counting(2))
    assert list(running.round or ()) == [0]
    running.reply(5)
    assert list(running.round or ()) == [1]
    assert running.run(lambda _: 6) == [5, 6]
    assert running.round is None


def test_a_nested_search_asks_through_the_outer_one() -> None:
    def words(proposals: Iterable[int]) -> Generator[Iterable[str], str | None, int | None]:
        for proposal in proposals:
            if (yield [f"is it {proposal}?"]) is not None:
                return proposal
        return None

    def outer() -> Generator[Iterable[str], str | None, tuple[list[int | None], str | None]]:
        answers = yield from nest(counting(2), words)
        return answers, (yield ["enough?"])

    asked: list[str] = []

    def answer(proposals: Iterable[str]) -> str | None:
        asked.extend(proposals)
        return asked[-1] if "1" in asked[-1] else None

    assert drive(outer(), answer) == ([None, 1], None)
    assert asked == ["is it 0?", "is it 1?", "enough?"]
