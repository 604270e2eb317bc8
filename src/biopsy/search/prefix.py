"""The shortest prefix that holds, by halves; and proposals that are made one after the other until one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from biopsy.search.rounds import Answer, Proposed, Search


def shortest_prefix(
    length: int, propose: Callable[[int], Proposed], *, from_end: bool = False
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    """Find the shortest prefix that holds; the one of full ``length`` is known to, the empty one taken not to.

    ``propose`` makes the proposal of a prefix of some length. Returns the length and the answer to it, None if it is
    the full length. Binary search, ceil(log2 N) rounds; ``from_end`` first by steps that double, which costs less where
    only a short suffix can go (Bentley and Yao 1976). It needs no monotony to be right: whatever it ends at has been
    seen to hold, and one less not to.
    """
    low, high, step = 0, length, 1 if from_end else 0
    last: Answer | None = None
    while high - low > 1:
        middle = max(low + 1, high - step) if step else (low + high) // 2
        answer = yield [propose(middle)]
        if answer is None:
            low, step = middle, 0
        else:
            high, last, step = middle, answer, step * 2
    return high, last


def in_turn(proposals: Iterable[Proposed]) -> Search[Proposed, Answer, Answer | None]:
    """Propose one a round until one holds; returns the answer to that one."""
    for proposal in proposals:
        answer = yield [proposal]
        if answer is not None:
            return answer
    return None


def doubled(length: int) -> Iterator[int]:
    """Lengths of prefixes: 1, 2, 4, ..., and ``length`` itself; none if that is 0."""
    taken = 1
    while taken < length:
        yield taken
        taken *= 2
    if length:
        yield length
