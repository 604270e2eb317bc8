"""What a search will probably ask next, so that answering can begin before it asks.

A search is deterministic, so a second one, sent the same answers, stands where the first one does. From there on it is
sent guesses; what it proposes then is what will be asked if they come true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from biopsy.search.drive import RunningSearch
from biopsy.search.rounds import Answer, Proposed, Result, Round, Search

Question = TypeVar("Question")

_MOST_ROUNDS = 64
"""Rounds that are looked at; they may hold nothing to ask, their answers being known."""


def foresee(
    begin: Callable[[], Search[Proposed, Answer, Result]],
    answers: Iterable[Answer | None],
    guess: Callable[[Round[Proposed]], Generator[Question, None, Answer | None]],
) -> Iterator[Question]:
    """The questions that a search will ask after ``answers``, in their order, if every guess is right.

    ``begin`` starts the search anew. ``guess`` yields the questions that a round leads to, and returns the answer that
    is then taken for granted.
    """
    search = _after(begin(), answers)
    for _ in range(_MOST_ROUNDS):
        if search.round is None:
            return
        search.reply((yield from guess(search.round)))


def foresee_any(
    begin: Callable[[], Search[Proposed, Proposed, Result]], answers: Iterable[Proposed | None]
) -> Iterator[Proposed]:
    """What a search will propose after ``answers``, whatever the answers to that are: the nearest first.

    For searches that are answered with one of their proposals or None. Searches are begun anew for each course that
    the answers can take.
    """
    courses = deque([tuple(answers)])
    for _ in range(_MOST_ROUNDS):
        if not courses:
            return
        course = courses.popleft()
        search = _after(begin(), course)
        if search.round is not None:
            possible = tuple(search.round)
            yield from possible
            courses += [(*course, answer) for answer in (None, *possible)]


def _after(
    search: Search[Proposed, Answer, Result], answers: Iterable[Answer | None]
) -> RunningSearch[Proposed, Answer, Result]:
    """A search as it stands after some answers."""
    running: RunningSearch[Proposed, Answer, Result] = RunningSearch(search)
    for answer in answers:
        running.reply(answer)
    return running
