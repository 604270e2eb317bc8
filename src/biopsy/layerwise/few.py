"""Few things of many that are enough."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from biopsy.reduction.passes.minimal_subset import fewest

Item = TypeVar("Item")


def few(items: Sequence[Item], are_enough: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A small subset of ``items``, at least one, that is enough as all of them are; in their order."""
    search: Generator[list[list[Item]], list[Item] | None, list[Item]] = fewest(items, list, at_least_one=True)
    answer: list[Item] | None = None
    while True:
        try:
            proposals = search.send(answer)
        except StopIteration as done:
            found: list[Item] = done.value
            return found
        answer = next((proposal for proposal in proposals if are_enough(proposal)), None)
