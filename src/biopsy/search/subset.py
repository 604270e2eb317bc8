"""Minimizing a subset: few items of many that still hold together, by prefixes, by leaving items out, and all such
subsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from biopsy.search.drive import Answer, Item, Proposed, Search, drive, first_that

_NO_MORE = 0.3
"""How likely it is that no more items are needed than those found: by trial, on few and many that are needed."""


def minimize_subset(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed], *, at_least_one: bool = False
) -> Search[Proposed, Answer, list[Item]]:
    """Find a small subset of ``items`` that still holds; all of them are known to.

    One needed item after the other is found as the last of the shortest prefix that, with the needed ones found so
    far, still holds, as QuickXplain does (Junker 2004); what is known of distances decides where each search begins.
    k needed items among N cost about k log2(N/k) + 3k rounds, less where they are neighbours. What is returned has
    been seen to hold, whether or not the predicate is monotone; if it is, nothing can be left out. ``at_least_one``:
    no items at all are never proposed.
    """
    if not items or (not at_least_one and (yield [propose([])]) is not None):
        return []
    rest, needed, neighbours = list(items), list[Item](), 0
    while rest:
        likely = _likely_left(len(rest), neighbours, len(needed))
        with_needed = partial(_with, propose, tuple(rest), tuple(needed))
        left, _ = yield from least(-1 if needed else 0, len(rest), with_needed, likely)
        if not left:
            break
        neighbours += left == len(rest)
        needed.insert(0, rest[left - 1])
        rest = rest[: left - 1]
    return needed


def _with(
    propose: Callable[[Sequence[Item]], Proposed], rest: Sequence[Item], needed: Sequence[Item], count: int
) -> Proposed:
    return propose([*rest[:count], *needed])


def _likely_left(length: int, neighbours: int, found: int) -> Likelihood:
    """How likely it is that at most so many items of the rest must be left with those found.

    The next needed item is the last of the rest as often as it was with those ``found``; or no more is needed; or it is
    anywhere, near the end rather than far away.
    """
    last = (1 + neighbours) / (3 + 2 * found)

    def likely(left: int) -> float:
        if left < 0:
            return 0.0
        nearer = last + (1 - last) * near(length - left, length)
        return 1 - (1 - _NO_MORE) * nearer if left < length else 1.0

    return likely


def minimize_subset_singly(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Search[Proposed, Answer, list[Item]]:
    """Minimize a subset until no single item can be left out (1-minimal), whether or not the predicate is monotone.

    ``items`` stand in the order of preference: the later go first.
    """
    needed = yield from minimize_subset(items, propose)
    before = None
    while needed != before:
        before = needed
        needed = yield from remove_each(needed[::-1], needed, propose)
    return needed


def minimal_subset(items: Sequence[Item]) -> Search[list[Item], list[Item], list[Item] | None]:
    """Find a subset, at least one item, of a monotone predicate of which no single item can be left out.

    None if not even all items hold.
    """
    if not items or (yield [list(items)]) is None:
        return None
    needed = yield from minimize_subset(items, list, at_least_one=True)
    return (yield from remove_each(needed, needed, list))


def minimized(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A small subset of ``items``, at least one, that holds as all of them do; in their order."""
    search: Search[list[Item], list[Item], list[Item]] = minimize_subset(items, list, at_least_one=True)
    return drive(search, first_that(holds))


# The shortest prefix that holds, by halves of what is likely; and proposals made one by one until one holds.

Likelihood: TypeAlias = Callable[[int], float]
"""How likely it is, on any scale, that what is looked for is at most a number; never less for a higher number."""


def least(
    low: int, high: int, propose: Callable[[int], Proposed], likely: Likelihood = float
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    """Find the least number that holds: above ``low``, which is taken not to, up to ``high``, which is known to.

    Each round halves what is likely, so what is twice as likely takes one round less. It needs no monotony to be right:
    whatever it ends at has been seen to hold, and one less not to. Returns the number and the answer to it, None if
    it is ``high``.
    """
    last: Answer | None = None
    while high - low > 1:
        half = (likely(low) + likely(high)) / 2
        above = min(bisect_left(range(low + 1, high), half, key=likely) + low + 1, high - 1)
        below = max(above - 1, low + 1)
        middle = below if half - likely(below) <= likely(above) - half else above
        answer = yield map(propose, (middle,))  # made only if it is looked at: lookahead knows many an answer
        if answer is None:
            low = middle
        else:
            high, last = middle, answer
    return high, last


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


# Removing items that are not needed: each by itself, or in runs that grow as long as they can go.


def remove_each(
    order: Sequence[Item], items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Search[Proposed, Answer, list[Item]]:
    """Try once, in ``order``, to do without each of some items; returns those that are left, at least one."""
    kept = list(items)
    for item in order:
        rest = [other for other in kept if other != item]
        if rest:
            answer = yield [propose(rest)]
            if answer is not None:
                kept = rest
    return kept


def remove_singly(
    order: Iterable[Item],
    target: Answer,
    propose: Callable[[Answer, Sequence[Item]], Iterable[Proposed]],
    left: Callable[[Answer], Container[Item]],
    comes_back: Callable[[Answer, Sequence[Item]], bool] = lambda target, items: False,
) -> Search[Proposed, Answer, Answer]:
    """Try once, in ``order``, to do without each item of a target; returns the last answer that held.

    ``propose`` gives the round without some items of a target, ``left`` the items that a target has. An answer equal to
    the target says that nothing could be left out, since the item came back; it then goes with the next ones. Where
    ``comes_back`` says so beforehand, of some items and so of any part of them, nothing is proposed.
    """
    remaining = left(target)
    rest = [item for item in order if item in remaining]
    start = end = 0  # those between were tried, and came back
    while end < len(rest):
        end += _fewest(len(rest) - end, lambda count: comes_back(target, rest[start : end + count]))  # noqa: B023
        if end > len(rest):
            return target
        answer = yield propose(target, rest[start:end])
        if answer == target:
            continue
        start = end
        if answer is not None:
            target = answer
            remaining = left(target)
            rest, start, end = [item for item in rest[end:] if item in remaining], 0, 0
    return target


def _fewest(most: int, is_too_few: Callable[[int], bool]) -> int:
    """The smallest number of one or more that is not too few; one more than ``most`` if all are."""
    low, high = 0, 1
    while is_too_few(high):
        if high == most:
            return most + 1
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_too_few(middle) else (low, middle)
    return high


def remove_in_runs(
    order: Sequence[Item],
    target: Answer,
    propose: Callable[[Answer, Sequence[Item]], Iterable[Proposed]],
    left: Callable[[Answer], Container[Item]],
) -> Search[Proposed, Answer, Answer]:
    """Try, from the end of ``order``, to do without each item, in runs that double as long as they can go.

    A longer run that cannot go is tried item by item. ``propose`` and ``left`` are those of ``remove_singly``.
    """
    waiting, step = list(order), 1
    while waiting:
        gone = waiting[-step:]
        answer = yield propose(target, gone)
        if answer is not None:
            target, step = answer, 2 * step
        elif step > 1:
            step = 1
            continue
        remaining = left(target)
        waiting = [item for item in waiting[: -len(gone)] if item in remaining]
    return target


# All minimal subsets that hold: each one that is found, with an item of it left out, leads to others.

Part = TypeVar("Part")


def minimal_subsets(items: Sequence[Item], most: int) -> Search[list[Item], list[Item], tuple[list[list[Item]], bool]]:
    """Find every subset of ``items`` that holds and of which nothing can be left out; and whether all were found.

    The predicate must be monotone: a subset with more items than one that holds must hold too. The search ends with
    ``most`` subsets. Without an item of every subset found so far, either nothing holds any more, or what is found is
    new: R. Reiter, A theory of diagnosis from first principles. Artificial Intelligence 32 (1987), 57-95.
    """
    subsets: list[list[Item]] = []
    seen: set[frozenset[Item]] = {frozenset()}
    waiting: deque[frozenset[Item]] = deque(seen)
    while waiting:
        without = waiting.popleft()
        subset = next((known for known in subsets if without.isdisjoint(known)), None)
        if subset is None:
            if len(subsets) >= most:
                return subsets, False
            subset = yield from minimal_subset([item for item in items if item not in without])
            if subset is None:
                continue
            subsets.append(subset)
        extended = [without | {item} for item in subset]
        waiting += [more for more in extended if more not in seen]
        seen.update(extended)
    return subsets, True


def shortest(subsets: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """Those with the fewest items."""
    least = min(map(len, subsets), default=0)
    return [list(subset) for subset in subsets if len(subset) == least]
