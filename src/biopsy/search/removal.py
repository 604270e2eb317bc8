"""Removing items that are not needed: each by itself, or in runs that grow as long as they can go."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from biopsy.search.rounds import Answer, Item, Proposed, Search


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
