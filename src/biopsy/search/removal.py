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
) -> Search[Proposed, Answer, Answer]:
    """Try once, in ``order``, to do without each item of a target; returns the last answer that held.

    ``propose`` gives the round without some items of a target, ``left`` the items that a target has. An answer equal to
    the target says that nothing could be left out, since the item came back; it then goes with the next ones.
    """
    waiting: list[Item] = []
    remaining = left(target)
    for item in order:
        if item in remaining:
            waiting = [*waiting, item]
            answer = yield propose(target, waiting)
            if answer != target:
                target, waiting = target if answer is None else answer, []
                remaining = left(target)
    return target


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
