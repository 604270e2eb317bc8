"""Searches as generators over rounds of proposals: their contract, what runs them, and what they may ask next."""

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
"""Independent proposals in order of preference; may be lazy."""

Search: TypeAlias = Generator[Iterable[Proposed], Answer | None, Result]
"""Yields rounds. The reply to a round is the answer for the first proposal that holds, or None if none holds.

The answer may differ from the proposal: the receiver may have completed it. A search is deterministic: the same answers
lead to the same rounds, which lookahead and resuming rely on. It returns its result.
"""


Question = TypeVar("Question")
Reply = TypeVar("Reply")


class RunningSearch(Generic[Proposed, Answer, Result]):
    """A search that has begun.

    ``round`` is the round to be answered, None once the search has ended; ``result`` exists only then.
    """

    result: Result

    def __init__(self, search: Search[Proposed, Answer, Result]) -> None:
        self._search = search
        self.round: Round[Proposed] | None = None
        self.reply(None)

    def reply(self, answer: Answer | None) -> None:
        """Answer the round: with the answer for the first proposal that holds, None if none holds."""
        try:
            self.round = self._search.send(answer)
        except StopIteration as end:
            self.round, self.result = None, end.value

    def run(self, answer: Callable[[Round[Proposed]], Answer | None]) -> Result:
        """Run the search to its end and return its result."""
        while self.round is not None:
            self.reply(answer(self.round))
        return self.result


def drive(search: Search[Proposed, Answer, Result], answer: Callable[[Round[Proposed]], Answer | None]) -> Result:
    """Run a search to its end; ``answer`` gives the reply to each round."""
    return RunningSearch(search).run(answer)


def nest(
    search: Search[Proposed, Answer, Result],
    answer: Callable[[Round[Proposed]], Generator[Question, Reply, Answer | None]],
) -> Generator[Question, Reply, Result]:
    """Run a search within another generator: ``answer`` may yield questions of its own to answer a round."""
    running = RunningSearch(search)
    while running.round is not None:
        running.reply((yield from answer(running.round)))
    return running.result


def first_that(holds: Callable[[Proposed], bool]) -> Callable[[Iterable[Proposed]], Proposed | None]:
    """A function that answers a round with its first proposal for which ``holds`` is true."""
    return lambda proposals: next((proposal for proposal in proposals if holds(proposal)), None)


# Foreseeing questions, so that answering them can begin before they are asked.
#
# A search is deterministic, so a copy that is sent the same answers is in the same state. Sent guessed answers from
# there on, it shows what will be asked if the guesses are right.

_MOST_ROUNDS = 64
"""Rounds looked at to find one question; a round asks nothing if all its answers are known."""

_MOST_FUTURES = 512
"""Futures looked at to find likely questions; the answer to some may be known."""

_FADING = 0.9
"""The weight of an answer is multiplied by this with each later answer."""


@dataclass(frozen=True, kw_only=True)
class Foreseeable(Generic[Proposed, Answer, Question]):
    """A search whose questions can be foreseen.

    ``begin`` starts it anew. ``questions`` yields the questions of a round, given the answers so far; each is asked
    only if none before it holds. It returns the answer to the round if none holds. ``held`` is the answer if a question
    holds.
    """

    begin: Callable[[], Search[Proposed, Answer, object]]
    questions: Callable[[Round[Proposed], Sequence[Answer | None]], Generator[Question, None, Answer | None]]
    held: Callable[[Question], Answer]


class Future(Generic[Proposed, Answer, Question]):
    """A possible future state of a search: after some answers, and some questions of its round that did not hold."""

    def __init__(self, search: Foreseeable[Proposed, Answer, Question], answers: Sequence[Answer | None] = ()) -> None:
        self._search = search
        self._answers = tuple(answers)
        self._round: Generator[Question, None, Answer | None] | None = None
        self._standing: list[RunningSearch[Proposed, Answer, object]] = []
        self._behind: dict[bool, Future[Proposed, Answer, Question]] = {}

    @cached_property
    def question(self) -> Question | None:
        """The next question; None if the search has ended."""
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
        """The future after its question holds or does not."""
        future = self._behind.get(holds)
        if future is None:
            assert self.question is not None
            answers = (*self._answers, self._search.held(self.question)) if holds else self._answers
            future = self._behind[holds] = Future(self._search, answers)
            future._round = None if holds else self._round
            future._standing = self._standing
        return future

    def _running(self) -> RunningSearch[Proposed, Answer, object]:
        """The search after the answers: continued from before the last answer if nobody has done so, else anew."""
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
    """Yield the questions of a future and those that may follow, most probable first.

    ``chance`` is the probability that a question holds; 0 or 1 if its answer is known, and then it is not yielded.
    After the first, only questions that will be asked with a probability above ``least`` are yielded. With even chances
    the order is breadth first: 2^k - 1 questions answer k rounds. If one answer is far more likely, its branch is
    followed deeper.
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
    """Yield what a search will propose after ``answers``, whatever the replies to that are: the nearest first.

    For searches whose reply is one of their proposals or None. ``chance`` is as in ``likely_questions``.
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
    """The probability that the next question holds, estimated from the answers so far; recent ones weigh most."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._held = 0.0

    @property
    def chance(self) -> float:
        """Between 0 and 1, 1/2 at first (Laplace's rule of succession)."""
        return (self._held + 1) / (self._asked + 2)

    @property
    def likeliest(self) -> float:
        """The probability of the more likely answer."""
        return max(self.chance, 1 - self.chance)

    def add(self, *, held: bool) -> None:
        """Record one more answer."""
        self._asked = _FADING * self._asked + 1
        self._held = _FADING * self._held + held


FEWEST = 16
"""Fewest parts to make at once: fewer tell less than the foreseen questions whose places they would take."""

_AT_FIRST = 9.0
"""Right guesses assumed before the first one."""

_LEAST_TRUST = 0.6
"""Share of right guesses below which guesses are worth nothing."""


@dataclass(eq=False)
class Part(Generic[Item]):
    """Adjacent items. ``is_needed``: whether one of them is needed by itself; None while that is not known."""

    items: tuple[Item, ...]
    is_needed: bool | None = None


@dataclass(eq=False)
class _Run(Generic[Item]):
    """Items of which at least one seems to be needed. ``parts`` are left out in turn to find it."""

    items: tuple[Item, ...]
    parts: list[Part[Item]] = field(default_factory=list)

    @cached_property
    def kept(self) -> frozenset[Item]:
        """The items as a set."""
        return frozenset(self.items)

    def restricted(self, left: Collection[Item]) -> _Run[Item]:
        """The run with only the items that are in ``left``."""
        for part in self.parts:
            part.items = tuple(item for item in part.items if item in left)
        return _Run(tuple(item for item in self.items if item in left), [part for part in self.parts if part.items])


class Scouting(Generic[Item]):
    """Guesses which of some items are needed; all of them together hold.

    ``items`` are ordered so that neighbours belong together, and exclude those already known to be ``needed``.
    """

    def __init__(self, items: Sequence[Item], needed: Iterable[Item] = ()) -> None:
        self._runs = [_Run((item,)) for item in needed]
        if items:
            self._runs.append(_Run(tuple(items)))
        self._right, self._guesses = _AT_FIRST, _AT_FIRST + 1

    @property
    def trust(self) -> float:
        """The probability that a guess is right; 1/2 if guesses are worth nothing."""
        return max(0.5, self._right / self._guesses) if self._right / self._guesses >= _LEAST_TRUST else 0.5

    def parts(self, most: int) -> list[Part[Item]]:
        """At most ``most`` parts for which it is worth finding out whether any of their items is needed.

        Parts given before whose answer is still unknown come first.
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
        """Record whether a part turned out to be needed."""
        part.is_needed = is_needed
        self._settle()

    def restrict(self, left: Collection[Item]) -> None:
        """Forget the items that are not in ``left``: the rest holds without them."""
        if all(run.kept.issubset(left) for run in self._runs):
            return
        self._runs = [smaller for run in self._runs if (smaller := run.restricted(left)).items]
        self._settle()

    def _settle(self) -> None:
        """Replace each run by its needed parts once all parts are known; a run stays if no part alone is needed."""
        runs: list[_Run[Item]] = []
        for run in self._runs:
            is_known = all(part.is_needed is not None for part in run.parts)
            runs += [_Run(part.items) for part in run.parts if is_known and part.is_needed] or [run]
        self._runs = runs

    def guess(self, kept: frozenset[Item]) -> bool | None:
        """Whether some items hold: False if a needed run is missing, True if no run is cut, None otherwise."""
        if any(run.kept.isdisjoint(kept) for run in self._runs):
            return False
        return True if all(run.kept.issubset(kept) for run in self._runs) else None

    def came_true(self, *, right: bool) -> None:
        """Count a guess."""
        self._right, self._guesses = 0.9 * self._right + right, 0.9 * self._guesses + 1
