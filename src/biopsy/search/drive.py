"""Searches are generators over rounds of proposals: their contract, what runs them, what they may ask next, and guesses
of what will be answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item", bound=Hashable)
Proposed = TypeVar("Proposed")
Answer = TypeVar("Answer")
Result = TypeVar("Result")

Round: TypeAlias = Iterable[Proposed]
"""Proposals that do not depend on each other's outcome, in the order of preference; may be made lazily."""

Search: TypeAlias = Generator[Iterable[Proposed], Answer | None, Result]
"""Yields rounds, and is sent the answer to each: what the first proposal that holds came to, None if none holds.

The answer need not be the proposal itself: whoever answers may have completed it. A search is deterministic, so the
same answers lead to the same rounds; that is what lookahead and resuming rest upon. It returns its result.
"""


# Runs searches: to the end, or within another search.

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


# What a search may ask next, so that answering can begin before it asks.
#
# A search is deterministic, so a second one, sent the same answers, stands where the first one does. Sent other
# answers from there on, it shows what will be asked if they come true.

_MOST_ROUNDS = 64
"""Rounds that are looked at for one question; they may hold nothing to ask, their answers being known."""

_MOST_FUTURES = 512
"""Futures that are looked at for what is likely; they may hold questions whose answers are known."""

_FADING = 0.9
"""What is left of the weight of an answer with each one that follows."""


@dataclass(frozen=True, kw_only=True)
class Foreseeable(Generic[Proposed, Answer, Question]):
    """A search whose questions can be foreseen.

    ``begin`` starts it anew. ``questions`` yields those that a round leads to after some answers, each asked only if
    none before it holds, and returns the answer if none does. ``held`` is the answer if a question holds.
    """

    begin: Callable[[], Search[Proposed, Answer, object]]
    questions: Callable[[Round[Proposed], Sequence[Answer | None]], Generator[Question, None, Answer | None]]
    held: Callable[[Question], Answer]


class Future(Generic[Proposed, Answer, Question]):
    """Where a search may come to: after some answers, and after some questions of its round that did not hold."""

    def __init__(self, search: Foreseeable[Proposed, Answer, Question], answers: Sequence[Answer | None] = ()) -> None:
        self._search = search
        self._answers = tuple(answers)
        self._round: Generator[Question, None, Answer | None] | None = None
        self._standing: list[RunningSearch[Proposed, Answer, object]] = []
        self._behind: dict[bool, Future[Proposed, Answer, Question]] = {}

    @cached_property
    def question(self) -> Question | None:
        """What is asked there; None if the search has ended."""
        for _ in range(_MOST_ROUNDS):
            if self._round is None:
                running = self._running()
                if running.round is None:
                    return None
                self._round = self._search.questions(running.round, self._answers)
            try:
                return next(self._round)
            except StopIteration as end:
                self._answers, self._round = (*self._answers, end.value), None
        return None

    def behind(self, holds: bool) -> Future[Proposed, Answer, Question]:
        """The future behind its question, which holds or does not."""
        found = self._behind.get(holds)
        if found is None:
            assert self.question is not None
            answers = (*self._answers, self._search.held(self.question)) if holds else self._answers
            found = self._behind[holds] = Future(self._search, answers)
            found._round = None if holds else self._round
            found._standing = self._standing
        return found

    def _running(self) -> RunningSearch[Proposed, Answer, object]:
        """The search after the answers: the one that stands before the last of them if nobody took it, else anew."""
        if self._standing:
            running = self._standing.pop()
            running.reply(self._answers[-1])
        else:
            running = RunningSearch(self._search.begin())
            for answer in self._answers:
                running.reply(answer)
        self._standing = [running]
        return running


def likely_questions(
    future: Future[Proposed, Answer, Question], chance: Callable[[Question], float], *, least: float = 0.0
) -> Iterator[Question]:
    """The questions of a future and of those behind it, those first that will most probably be asked.

    ``chance`` says how likely a question holds: 0 or 1 if its answer is known, and then it is not yielded. After the
    first one, only those are yielded that will be asked with a chance above ``least``. Questions
    with even chances are foreseen breadth first: 2^k - 1 of them answer k rounds. Where one answer is far more likely,
    its way is followed to a greater depth.
    """
    order = count()
    waiting = [(-1.0, next(order), future)]
    is_first = True
    for _ in range(_MOST_FUTURES):
        if not waiting:
            return
        negative, _, future = heappop(waiting)
        if not is_first and -negative <= least:
            return
        question = future.question
        if question is None:
            continue
        likely = chance(question)
        if 0 < likely < 1:
            yield question
            is_first = False
        for holds, share in ((False, 1 - likely), (True, likely)):
            if share > 0:
                heappush(waiting, (negative * share, next(order), future.behind(holds)))


def foresee_any(
    begin: Callable[[], Search[Proposed, Proposed, Result]],
    answers: Sequence[Proposed | None],
    chance: Callable[[Proposed], float] = lambda proposal: 0.5,
) -> Iterator[Proposed]:
    """What a search will propose after ``answers``, whatever the answers to that are: the nearest first.

    For searches that are answered with one of their proposals or None. ``chance`` is that of ``likely_questions``.
    """

    def questions(
        proposals: Round[Proposed], _: Sequence[Proposed | None]
    ) -> Generator[Proposed, None, Proposed | None]:
        yield from proposals
        return None

    search: Foreseeable[Proposed, Proposed, Proposed] = Foreseeable(
        begin=begin, questions=questions, held=lambda proposal: proposal
    )
    return likely_questions(Future(search, answers), chance)


class Odds:
    """How likely the next question holds, by those before it: what was answered last counts most."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._held = 0.0

    @property
    def chance(self) -> float:
        """Between 0 and 1, 1/2 at first (Laplace's rule of succession)."""
        return (self._held + 1) / (self._asked + 2)

    @property
    def likeliest(self) -> float:
        """How likely the more likely answer is."""
        return max(self.chance, 1 - self.chance)

    def add(self, *, held: bool) -> None:
        """Take one more answer into account."""
        self._asked = _FADING * self._asked + 1
        self._held = _FADING * self._held + held


FEWEST = 16
"""Parts that are made at once, at least: fewer tell less than foreseen questions do, which take their places."""

_AT_FIRST = 9.0
"""Guesses that are taken to have come true before the first one."""

_LEAST_TRUST = 0.6
"""How often guesses must come true to be worth more than none."""


@dataclass(eq=False)
class Part(Generic[Item]):
    """Some items next to each other. ``is_needed``: whether any of them is, by themselves; None while nobody knows."""

    items: tuple[Item, ...]
    is_needed: bool | None = None


@dataclass(eq=False)
class _Run(Generic[Item]):
    """Items of which at least one is needed, as far as anybody knows. ``parts`` are left out in turn to find it."""

    items: tuple[Item, ...]
    parts: list[Part[Item]] = field(default_factory=list)

    @cached_property
    def kept(self) -> frozenset[Item]:
        """``items``, to compare with others."""
        return frozenset(self.items)

    def restricted(self, left: Collection[Item]) -> _Run[Item]:
        """The run without items that are not ``left``."""
        for part in self.parts:
            part.items = tuple(item for item in part.items if item in left)
        return _Run(tuple(item for item in self.items if item in left), [part for part in self.parts if part.items])


class Scouting(Generic[Item]):
    """What is guessed to be needed of some items, all of which together hold.

    ``items`` stand in an order in which neighbours belong together, without those that are ``needed`` already.
    """

    def __init__(self, items: Sequence[Item], needed: Iterable[Item] = ()) -> None:
        self._runs = [_Run((item,)) for item in needed]
        if items:
            self._runs.append(_Run(tuple(items)))
        self._right, self._guesses = _AT_FIRST, _AT_FIRST + 1

    @property
    def trust(self) -> float:
        """How likely a guess comes true, above 1/2: 1/2 if they are worth nothing."""
        return max(0.5, self._right / self._guesses) if self._right / self._guesses >= _LEAST_TRUST else 0.5

    def parts(self, most: int) -> list[Part[Item]]:
        """Parts, at most so many, of which it is worth finding out whether any of their items is needed.

        Those that were given before, and of which nobody knows yet, come first.
        """
        open_runs = [run for run in self._runs if len(run.items) > 1]
        fresh = [run for run in open_runs if not run.parts]
        waiting = [part for run in open_runs for part in run.parts if part.is_needed is None]
        left = most - len(waiting)
        if left < FEWEST:
            return waiting[: max(0, most)]
        for place, run in enumerate(sorted(fresh, key=lambda run: -len(run.items))):
            count = min(len(run.items), left // (len(fresh) - place))
            if count > 1:
                borders = [number * len(run.items) // count for number in range(count + 1)]
                run.parts = [Part(run.items[start:end]) for start, end in pairwise(borders)]
                waiting += run.parts
                left -= count
        return waiting[:most]

    def learn(self, part: Part[Item], *, is_needed: bool) -> None:
        """Take into account what leaving out a part has come to."""
        part.is_needed = is_needed
        self._settle()

    def restrict(self, left: Collection[Item]) -> None:
        """Forget items that are not ``left``: it holds without them."""
        if all(run.kept.issubset(left) for run in self._runs):
            return
        self._runs = [rest for run in self._runs if (rest := run.restricted(left)).items]
        self._settle()

    def _settle(self) -> None:
        """Go on with the parts of a run that are needed, once all are known; if none is by itself, it stays whole."""
        runs: list[_Run[Item]] = []
        for run in self._runs:
            is_known = all(part.is_needed is not None for part in run.parts)
            runs += [_Run(part.items) for part in run.parts if is_known and part.is_needed] or [run]
        self._runs = runs

    def guess(self, kept: frozenset[Item]) -> bool | None:
        """Whether some items hold: not without a run of which one is needed. None if they have only parts of runs."""
        if any(run.kept.isdisjoint(kept) for run in self._runs):
            return False
        return True if all(run.kept.issubset(kept) for run in self._runs) else None

    def came_true(self, *, right: bool) -> None:
        """Count a guess."""
        self._right, self._guesses = 0.9 * self._right + right, 0.9 * self._guesses + 1
