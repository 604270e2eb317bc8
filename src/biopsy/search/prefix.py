"""The shortest prefix that holds, by halves of what is likely; and proposals made one by one until one holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from biopsy.search.rounds import Answer, Proposed, Search

Likelihood: TypeAlias = Callable[[int], float]
"""How likely it is, on any scale, that what is looked for is at most a number; never less for a higher number."""


def shortest_prefix(
    length: int, propose: Callable[[int], Proposed], *, likely: Likelihood = float
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    """Find the shortest prefix that holds; the one of full ``length`` is known to, the empty one taken not to.

    ``propose`` makes the proposal of a prefix of some length. Returns the length and the answer to it, None if it is
    the full length. If all lengths are equally ``likely``, it takes ceil(log2 N) rounds.
    """
    return least(0, length, propose, likely)


def least(
    low: int, high: int, propose: Callable[[int], Proposed], likely: Likelihood
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    """Find the least number that holds: above ``low``, which is taken not to, up to ``high``, which is known to.

    Each round halves what is likely, so what is twice as likely takes one round less. It needs no monotony to be right:
    whatever it ends at has been seen to hold, and one less not to. Returns the number and the answer to it, None if
    it is ``high``.
    """
    last: Answer | None = None
    while high - low > 1:
        middle = _halving(low, high, likely)
        answer = yield map(propose, (middle,))  # made only if it is looked at: lookahead knows many an answer
        if answer is None:
            low = middle
        else:
            high, last = middle, answer
    return high, last


def _halving(low: int, high: int, likely: Likelihood) -> int:
    """The number between two others that best halves what is likely between them."""
    half = (likely(low) + likely(high)) / 2
    above = min(bisect_left(range(low + 1, high), half, key=likely) + low + 1, high - 1)
    below = max(above - 1, low + 1)
    return below if half - likely(below) <= likely(above) - half else above


def near(taken: int, length: int) -> float:
    """A likelihood, from 0 to 1, for numbers up to ``length`` that are often small.

    For one half, all numbers are equally likely; for the other, all orders of magnitude are. So small numbers take the
    fewest rounds, and others hardly one more than by plain halves: fewer than by steps that double (Bentley and Yao
    1976).
    """
    return (taken / length + _log2(taken + 1) / _log2(length + 1)) / 2 if length else 0.0


def _log2(number: int) -> float:
    """The logarithm, straight between powers of two: on every machine the same."""
    whole = number.bit_length() - 1
    return whole - 1 + number / (1 << whole)


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
