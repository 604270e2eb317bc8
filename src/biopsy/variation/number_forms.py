"""Simple conditions on a whole number, held against what is known: odd, a power of two, at least so many.

No other form is ever claimed, and none that contradicts an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NumberForm:
    """A condition on a whole number: which numbers ``hold``, what it is in words, and how much must agree with it."""

    text: str
    holds: Callable[[int], bool]
    least_failing: int = 1
    least_passing: int = 1

    def is_supported(self, failing: Collection[int], passing: Collection[int]) -> bool:
        """Whether enough numbers agree with it that it may be claimed."""
        return len(failing) >= self.least_failing and len(passing) >= self.least_passing


def consistent_forms(failing: Collection[int], passing: Collection[int], named: Mapping[int, str]) -> list[NumberForm]:
    """The forms that hold of all failing numbers and of no passing one, the simplest first.

    There is at least one failing number, and one that passes.
    """
    return [
        form
        for form in _forms(failing, passing, named)
        if all(map(form.holds, failing)) and not any(map(form.holds, passing))
    ]


def _forms(failing: Collection[int], passing: Collection[int], named: Mapping[int, str]) -> Iterator[NumberForm]:
    if len(failing) == 1:
        only = next(iter(failing))
        yield NumberForm(str(only), lambda number: number == only)
    yield from _thresholds(failing, passing)
    yield _pattern("odd", lambda number: number % 2 == 1)
    yield _pattern("even", lambda number: number % 2 == 0)
    yield _pattern("a power of two", is_power_of_two)
    yield _pattern("no power of two", lambda number: not is_power_of_two(number))
    if len(passing) == 1:
        but = next(iter(passing))
        meaning = f" ({named[but]})" if but in named else ""
        yield NumberForm(f"any but {but}{meaning}", lambda number: number != but, least_failing=3)


def _pattern(text: str, holds: Callable[[int], bool]) -> NumberForm:
    """A form that few numbers agree with by chance, so that three that fail and two that pass are asked for."""
    return NumberForm(text, holds, least_failing=3, least_passing=2)


def _thresholds(failing: Collection[int], passing: Collection[int]) -> Iterator[NumberForm]:
    low, high = max(passing), min(passing)
    least, most = min(failing), max(failing)
    if low < least:
        gap = "" if low + 1 == least else f" ({low} is too small)"
        yield NumberForm(f"at least {least}{gap}", lambda number: number > low)
    if most < high:
        gap = "" if most + 1 == high else f" ({high} is too large)"
        yield NumberForm(f"at most {most}{gap}", lambda number: number < high)


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


def telling(forms: Sequence[NumberForm], unknown: Collection[int], near: int) -> int | None:
    """The number whose answer leaves fewest of the forms; of several, the one nearest. None if all say the same."""

    def left(number: int) -> int:
        holding = sum(form.holds(number) for form in forms)
        return max(holding, len(forms) - holding)

    best = min(unknown, key=lambda number: (left(number), abs(number - near), number), default=None)
    return None if best is None or left(best) == len(forms) else best


def between(failing: Collection[int], passing: Collection[int]) -> int | None:
    """The number halfway between those that fail and those that pass, if they lie apart and are no neighbours."""
    low, high = max(passing), min(passing)
    gaps = [(low, min(failing))] if low < min(failing) else [(max(failing), high)] if max(failing) < high else []
    return next(((below + above) // 2 for below, above in gaps if above - below > 1), None)
