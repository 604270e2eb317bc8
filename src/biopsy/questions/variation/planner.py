"""Which changes are tried, in which order, and when enough is known, with the simple conditions on numbers that
answers are held against. It knows nothing of models or checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from biopsy.questions.variation.features import Alternative, Answer, ExaminedFeature, Numbers
from biopsy.search.drive import RunningSearch, Search

_MOST_ANSWERS = 6
"""Changes of one feature that were checked; a few more where it is a number."""

_MOST_MORE = 5
_MOST_OF_NEITHER = 3
_KINDS_OF_FREE = 3
_KINDS_OF_FIXED = 3
_FREE_ENOUGH = 4


@dataclass(frozen=True)
class Trying:
    """A change that is to be checked, and the examination that wants to know."""

    examination: ExaminedFeature
    alternative: Alternative


def varied(examinations: Sequence[ExaminedFeature]) -> Search[Trying, Sequence[Answer], None]:
    """Ask about every feature, one change of each in a round.

    Who answers adds what was ``seen`` to the examinations themselves, so that nothing is lost where a budget ends it.
    """
    running = [(one, RunningSearch(_examined(one))) for one in examinations]
    while True:
        waiting = [(one, search) for one, search in running if search.round is not None]
        if not waiting:
            return
        yield [Trying(one, alternative) for one, search in waiting for alternative in search.round or ()]
        for _, search in waiting:
            search.reply(None)


def _examined(examination: ExaminedFeature) -> Search[Alternative, None, None]:
    """Ask about its changes; of a number until one condition and its threshold are known, or enough was asked."""
    for alternative in examination.feature.alternatives:
        if _is_decided(examination):
            return
        yield [alternative]
    numbers = examination.feature.numbers
    for _ in range(_MOST_MORE if numbers is not None else 0):
        number = _next_number(examination)
        if numbers is None or number is None or len(examination.that("neither")) >= _MOST_OF_NEITHER:
            return
        yield [numbers.with_value(number)]


def _is_decided(examination: ExaminedFeature) -> bool:
    failing, passing = examination.that("fails"), examination.that("passes")
    if not passing and len(failing) < len(examination.that("neither")) >= _MOST_OF_NEITHER:
        return True
    if len(failing) + len(passing) >= _MOST_ANSWERS:
        return examination.feature.numbers is None
    if examination.feature.numbers is not None or (failing and passing):
        return False
    if failing:
        return len(failing) >= _FREE_ENOUGH and kinds(failing) >= _KINDS_OF_FREE
    return kinds(passing) >= _KINDS_OF_FIXED


def kinds(alternatives: Sequence[Alternative]) -> int:
    """How many different kinds of change there are among some."""
    return len({alternative.kind for alternative in alternatives})


def _next_number(examination: ExaminedFeature) -> int | None:
    numbers = examination.feature.numbers
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    if numbers is None or not passing:
        return None
    forms, unknown = _open_questions(examination, numbers)
    number = telling(forms, unknown, numbers.present)
    if number is not None or not forms:
        return number
    if not forms[0].is_supported(failing, passing):
        return min(unknown, key=lambda number: (abs(number - numbers.present), number), default=None)
    halfway = between(failing, passing)
    return halfway if halfway in unknown else None


def _open_questions(examination: ExaminedFeature, numbers: Numbers) -> tuple[list[NumberForm], set[int]]:
    """The conditions on a number that agree with all that is known, and the numbers that were not tried."""
    tried = {numbers.present, *(one.alternative.value for one in examination.seen)}
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    return consistent_forms(failing, passing, numbers.named), set(range(numbers.least, numbers.most + 1)) - tried


def is_ambiguous(examination: ExaminedFeature) -> bool:
    """Whether several conditions that differ agree with all that is known of a number."""
    numbers = examination.feature.numbers
    if numbers is None or not examination.numbers_that("passes"):
        return False
    return telling(*_open_questions(examination, numbers), numbers.present) is not None


# Simple conditions on a whole number, held against what is known: odd, a power of two, at least so many.
#
# No other form is ever claimed, and none that contradicts an answer.


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
    low, high, least, most = max(passing), min(passing), min(failing), max(failing)
    forms: list[NumberForm] = []
    if len(failing) == 1:
        forms.append(NumberForm(str(least), lambda number: number == least))
    if low < least:
        gap = "" if low + 1 == least else f" ({low} is too small)"
        forms.append(NumberForm(f"at least {least}{gap}", lambda number: number > low))
    if most < high:
        gap = "" if most + 1 == high else f" ({high} is too large)"
        forms.append(NumberForm(f"at most {most}{gap}", lambda number: number < high))
    forms += [NumberForm(text, holds, least_failing=3, least_passing=2) for text, holds in _RARE.items()]
    if len(passing) == 1:
        meaning = f" ({named[low]})" if low in named else ""
        forms.append(NumberForm(f"any but {low}{meaning}", lambda number: number != low, least_failing=3))
    return [form for form in forms if all(map(form.holds, failing)) and not any(map(form.holds, passing))]


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


_RARE: Mapping[str, Callable[[int], bool]] = {
    "odd": lambda number: number % 2 == 1,
    "even": lambda number: number % 2 == 0,
    "a power of two": is_power_of_two,
    "no power of two": lambda number: not is_power_of_two(number),
}
"""What few numbers agree with by chance, so that three that fail and two that pass are asked for."""


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
