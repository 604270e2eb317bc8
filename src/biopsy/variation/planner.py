"""Which changes are tried, in which order, and when enough is known: a search that knows nothing of models or checks.

Every feature is asked about in turn, so that a small budget tells something of each. Where it is a whole number, more
numbers are asked about until one simple condition is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from biopsy.search.drive import RunningSearch
from biopsy.search.rounds import Search
from biopsy.variation.features import Alternative, Answer, ExaminedFeature
from biopsy.variation.number_forms import between, consistent_forms, telling

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
    for alternative in examination.feature.alternatives:
        if _is_decided(examination):
            return
        yield [alternative]
    if examination.feature.numbers is not None:
        yield from _narrowed(examination)


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


def _narrowed(examination: ExaminedFeature) -> Search[Alternative, None, None]:
    """Ask about further numbers, until one condition is left and its threshold is known, or enough was asked."""
    numbers = examination.feature.numbers
    assert numbers is not None
    for _ in range(_MOST_MORE):
        number = _next_number(examination)
        if number is None or len(examination.that("neither")) >= _MOST_OF_NEITHER:
            return
        yield [numbers.with_value(number)]


def _next_number(examination: ExaminedFeature) -> int | None:
    numbers = examination.feature.numbers
    assert numbers is not None
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    if not passing:
        return None
    unknown = set(range(numbers.least, numbers.most + 1)) - set(_tried(examination))
    forms = consistent_forms(failing, passing, numbers.named)
    told = telling(forms, unknown, numbers.present)
    if told is not None or not forms:
        return told
    if not forms[0].is_supported(failing, passing):
        return min(unknown, key=lambda number: (abs(number - numbers.present), number), default=None)
    halfway = between(failing, passing)
    return halfway if halfway in unknown else None


def _tried(examination: ExaminedFeature) -> Iterator[int]:
    numbers = examination.feature.numbers
    if numbers is not None:
        yield numbers.present
    yield from (one.alternative.value for one in examination.seen if one.alternative.value is not None)


def is_ambiguous(examination: ExaminedFeature) -> bool:
    """Whether several conditions that differ agree with all that is known of a number."""
    numbers = examination.feature.numbers
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    if numbers is None or not passing:
        return False
    unknown = set(range(numbers.least, numbers.most + 1)) - set(_tried(examination))
    return telling(consistent_forms(failing, passing, numbers.named), unknown, numbers.present) is not None
