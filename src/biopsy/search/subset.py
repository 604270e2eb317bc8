"""Minimizing a subset: find few of many items that still hold together, and all minimal subsets."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from biopsy.search.drive import Answer, Item, Proposed, Search, drive, first_that

_NO_MORE = 0.3
"""Prior probability that the needed items found so far are all of them; tuned on cases with few and many."""


def minimize_subset(
    items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed], *, at_least_one: bool = False
) -> Search[Proposed, Answer, list[Item]]:
    """Find a small subset of ``items`` that still holds; all of them together are known to.

    As in QuickXplain (Junker 2004), each needed item is found as the last of the shortest prefix that holds together
    with the needed items found so far; the distances seen so far decide where each bisection begins. k needed items
    among N cost about k log2(N/k) + 3k rounds, fewer if they are neighbours. The result has been seen to hold, even if
    the predicate is not monotone; if it is, the result is 1-minimal. ``at_least_one``: never propose the empty subset.
    """
    if not items or (not at_least_one and (yield [propose([])]) is not None):
        return []
    remaining, needed, neighbours = list(items), list[Item](), 0
    while remaining:
        likely = _likely_left(len(remaining), neighbours, len(needed))
        with_needed = partial(_with, propose, tuple(remaining), tuple(needed))
        left, _ = yield from least(-1 if needed else 0, len(remaining), with_needed, likely)
        if not left:
            break
        neighbours += left == len(remaining)
        needed.insert(0, remaining[left - 1])
        remaining = remaining[: left - 1]
    return needed


def _with(
    propose: Callable[[Sequence[Item]], Proposed], remaining: Sequence[Item], needed: Sequence[Item], count: int
) -> Proposed:
    return propose([*remaining[:count], *needed])


def _likely_left(length: int, neighbours: int, found: int) -> Likelihood:
    """The probability that at most some number of the ``length`` remaining items is needed besides those ``found``.

    Three cases: the next needed item is the last remaining one, as often as before; no further item is needed; or it is
    anywhere, with places near the end more likely.
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

    ``items`` are in order of preference: later ones are removed first.
    """
    needed = yield from minimize_subset(items, propose)
    before = None
    while needed != before:
        before = needed
        needed = yield from remove_each(needed[::-1], needed, propose)
    return needed


def minimal_subset(items: Sequence[Item]) -> Search[list[Item], list[Item], list[Item] | None]:
    """Find a 1-minimal subset with at least one item; the predicate is monotone.

    Returns None if not even all items hold.
    """
    if not items or (yield [list(items)]) is None:
        return None
    needed = yield from minimize_subset(items, list, at_least_one=True)
    return (yield from remove_each(needed, needed, list))


def minimized(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A small subset of ``items``, at least one, that holds; in their order."""
    search: Search[list[Item], list[Item], list[Item]] = minimize_subset(items, list, at_least_one=True)
    return drive(search, first_that(holds))


Likelihood: TypeAlias = Callable[[int], float]
"""How likely the searched number is at most the given one, on any scale; never falls with the number."""


def least(
    low: int, high: int, propose: Callable[[int], Proposed], likely: Likelihood = float
) -> Search[Proposed, Answer, tuple[int, Answer | None]]:
    """Find the least number that holds: above ``low``, assumed not to hold, up to ``high``, known to hold.

    Each round halves the likelihood, so a result that is twice as likely takes one round less. Even if the predicate is
    not monotone, the result has been seen to hold and its predecessor not to. Returns the number and the answer to it,
    None if it is ``high``.
    """
    last: Answer | None = None
    while high - low > 1:
        half = (likely(low) + likely(high)) / 2
        above = min(bisect_left(range(low + 1, high), half, key=likely) + low + 1, high - 1)
        below = max(above - 1, low + 1)
        middle = below if half - likely(below) <= likely(above) - half else above
        answer = yield map(propose, (middle,))  # lazy: lookahead often knows the answer without the proposal
        if answer is None:
            low = middle
        else:
            high, last = middle, answer
    return high, last


def near(taken: int, length: int) -> float:
    """A likelihood, from 0 to 1, for numbers up to ``length`` that are often small.

    Half of the weight is uniform over all numbers, half over all orders of magnitude. So small numbers take the fewest
    rounds, and others hardly one more than plain bisection: fewer than by doubling steps (Bentley and Yao 1976).
    """
    return (taken / length + _log2(taken + 1) / _log2(length + 1)) / 2 if length else 0.0


def _log2(number: int) -> float:
    """The binary logarithm, linear between powers of two, so that it is the same on every machine."""
    exponent = number.bit_length() - 1
    return exponent - 1 + number / (1 << exponent)


def in_turn(proposals: Iterable[Proposed]) -> Search[Proposed, Answer, Answer | None]:
    """Propose one item per round until one holds; returns the answer to it, else None."""
    for proposal in proposals:
        answer = yield [proposal]
        if answer is not None:
            return answer
    return None


def doubled(length: int) -> Iterator[int]:
    """Yield prefix lengths 1, 2, 4, ..., ending with ``length`` itself; nothing if that is 0."""
    taken = 1
    while taken < length:
        yield taken
        taken *= 2
    if length:
        yield length


def remove_each(
    order: Sequence[Item], items: Sequence[Item], propose: Callable[[Sequence[Item]], Proposed]
) -> Search[Proposed, Answer, list[Item]]:
    """Try once, in ``order``, to do without each item; returns the items left, at least one."""
    kept = list(items)
    for item in order:
        others = [other for other in kept if other != item]
        if others:
            answer = yield [propose(others)]
            if answer is not None:
                kept = others
    return kept


def remove_singly(
    order: Iterable[Item],
    target: Answer,
    propose: Callable[[Answer, Sequence[Item]], Iterable[Proposed]],
    left: Callable[[Answer], Container[Item]],
    comes_back: Callable[[Answer, Sequence[Item]], bool] = lambda target, items: False,
) -> Search[Proposed, Answer, Answer]:
    """Try once, in ``order``, to remove each item of a target; returns the last answer that held.

    ``propose`` gives the round without some items of a target, ``left`` the items that a target has. An answer equal to
    the target means that the item came back: it is then removed together with the next ones. ``comes_back`` tells
    beforehand that some items, and so any of them alone, would come back: then nothing is proposed.
    """
    remaining = left(target)
    pending = [item for item in order if item in remaining]
    start = end = 0  # items between these were tried, and came back
    while end < len(pending):
        end += _fewest(len(pending) - end, lambda count: comes_back(target, pending[start : end + count]))  # noqa: B023
        if end > len(pending):
            return target
        answer = yield propose(target, pending[start:end])
        if answer == target:
            continue
        start = end
        if answer is not None:
            target = answer
            remaining = left(target)
            pending, start, end = [item for item in pending[end:] if item in remaining], 0, 0
    return target


def _fewest(most: int, is_too_few: Callable[[int], bool]) -> int:
    """The smallest number, from 1, that is not too few; ``most`` + 1 if all are."""
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
    """Try, from the end of ``order``, to remove each item, in runs that double as long as they can be removed.

    If a longer run cannot be removed, its items are tried one by one. ``propose`` and ``left`` are as in
    ``remove_singly``.
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


Part = TypeVar("Part")


def minimal_subsets(items: Sequence[Item], most: int) -> Search[list[Item], list[Item], tuple[list[list[Item]], bool]]:
    """Find every minimal subset of ``items`` that holds; and whether all were found.

    The predicate must be monotone: a superset of a subset that holds must hold too. The search ends once it has
    ``most`` subsets, or has been told 16 times as often that nothing holds. If one item of every known subset is
    removed, either nothing holds any more or a new subset is found: R. Reiter, A theory of diagnosis from first
    principles. Artificial Intelligence 32 (1987), 57-95.
    """
    subsets: list[list[Item]] = []
    seen: set[frozenset[Item]] = {frozenset()}
    waiting: deque[frozenset[Item]] = deque(seen)
    fatal: list[frozenset[Item]] = []
    while waiting:
        without = waiting.popleft()
        if any(removed <= without for removed in fatal):
            continue
        subset = next((known for known in subsets if without.isdisjoint(known)), None)
        if subset is None:
            if len(subsets) >= most or len(fatal) >= 16 * most:
                return subsets, False
            subset = yield from minimal_subset([item for item in items if item not in without])
            if subset is None:
                fatal.append(without)
                continue
            subsets.append(subset)
        extended = [without | {item} for item in subset]
        waiting += [more for more in extended if more not in seen]
        seen.update(extended)
    return subsets, True


def shortest(subsets: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """The subsets with the fewest items."""
    least = min(map(len, subsets), default=0)
    return [list(subset) for subset in subsets if len(subset) == least]
