"""Runs searches: to the end, or within another search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

from biopsy.search.rounds import Answer, Proposed, Result, Round, Search

Question = TypeVar("Question")
Reply = TypeVar("Reply")


class RunningSearch(Generic[Proposed, Answer, Result]):
    """A search that has begun.

    ``round`` is the one that it waits for the answer to, None once it has ended; only then there is a ``result``.
    """

    result: Result

    def __init__(self, search: Search[Proposed, Answer, Result]) -> None:
        self._search = search
        self.round: Round[Proposed] | None = None
        self.reply(None)

    def reply(self, answer: Answer | None) -> None:
        """Answer the round: what the first proposal that holds came to, None if none holds."""
        try:
            self.round = self._search.send(answer)
        except StopIteration as end:
            self.round, self.result = None, end.value

    def run(self, answer: Callable[[Round[Proposed]], Answer | None]) -> Result:
        """Run it to its end, and return what it returns."""
        while self.round is not None:
            self.reply(answer(self.round))
        return self.result


def drive(search: Search[Proposed, Answer, Result], answer: Callable[[Round[Proposed]], Answer | None]) -> Result:
    """Run a search to its end; ``answer`` tells of each round what the first proposal that holds came to."""
    return RunningSearch(search).run(answer)


def nest(
    search: Search[Proposed, Answer, Result],
    answer: Callable[[Round[Proposed]], Generator[Question, Reply, Answer | None]],
) -> Generator[Question, Reply, Result]:
    """Run a search within another one: each of its rounds is answered by a generator that asks in its turn."""
    running = RunningSearch(search)
    while running.round is not None:
        running.reply((yield from answer(running.round)))
    return running.result


def first_that(holds: Callable[[Proposed], bool]) -> Callable[[Iterable[Proposed]], Proposed | None]:
    """The plain way to answer a round: with the first proposal of which ``holds`` is true."""
    return lambda proposals: next((proposal for proposal in proposals if holds(proposal)), None)
