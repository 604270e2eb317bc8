"""A mismatch has a kind and a size: what a smaller model must show too before it counts as the same failure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from biopsy.records import Record, record_of

Kind: TypeAlias = Literal[
    "mismatch", "not-finite-mismatch", "shape-mismatch", "type-mismatch", "missing-output"
]  # fmt: skip
"""How two outputs differ: outside the tolerances; finite on one side only; in shape; in type (strings and numbers);
one side lacks it."""

KINDS: tuple[Kind, ...] = get_args(Kind)

GRAVEST: tuple[Kind, ...] = (
    "missing-output", "type-mismatch", "shape-mismatch", "not-finite-mismatch", "mismatch",
)  # fmt: skip
"""Which kind names a run that shows several: the first of these."""

COMPARABLE = 10.0
"""An error that is at most so many times smaller than the original's counts as the same without a further question."""

_RARE = 0.01
_ONE_SIDED = 0.75
_FEWEST_FOR_A_SIDE = 8
"""Of so many random signs, all but one agree in less than 1 % of all cases."""

FAR_BEYOND_ROUNDING = 2.0**12
"""Roundings of the greatest value. A sum of 10^7 terms errs by about so much, one float16 rounding is twice that."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """How one output differs from what is expected of it. None: not known, or no finite number.

    ``wrong`` of ``elements`` are outside the tolerances, ``above`` of them greater than expected. ``error`` is the
    greatest |actual - expected|, at ``index``, between ``actual`` and ``expected``. ``times_tolerance`` is the greatest
    quotient of an error and what is allowed there; ``times_rounding`` is ``error`` by one rounding of the greatest
    expected value in the output's type. ``quantum`` is the distance between two neighbouring values of a discrete
    output (integers, Floor, dequantized values; 0 where they have no order). ``passing_atol`` is the smallest that
    would pass.
    """

    output: str
    kind: str = "mismatch"
    elements: int = 0
    wrong: int = 0
    above: int = 0
    error: float | None = None
    index: tuple[int, ...] = ()
    actual: float | None = None
    expected: float | None = None
    times_tolerance: float | None = None
    times_rounding: float | None = None
    quantum: float | None = None
    passing_atol: float | None = None

    @property
    def share(self) -> float:
        """The part of the elements that is wrong, 0 to 1."""
        return self.wrong / self.elements if self.elements else 0.0

    @property
    def bias(self) -> float:
        """Which side wrong elements are on: -1 all below, 0 as many above as below, 1 all above."""
        return (2 * self.above - self.wrong) / self.wrong if self.wrong else 0.0

    @property
    def discrete(self) -> bool:
        """Whether the output has only few values, so that an error of rounding size is not seen, or a whole step."""
        return self.quantum is not None

    @property
    def is_tie(self) -> bool:
        """Whether rounding errors may have moved some elements over a border: one step, rarely, to both sides.

        A truncation is not like that: it moves half of the elements to one side.
        """
        if self.quantum is None or self.error is None or self.share > _RARE:
            return False
        one_sided = self.wrong >= _FEWEST_FOR_A_SIDE and abs(self.bias) > _ONE_SIDED
        return 0 < self.error <= 1.001 * self.quantum and not one_sided


@dataclass(frozen=True)
class Rounding:
    """Whether rounding explains an error, judged against float64: see ``noise.py``.

    ``times`` is the error as a multiple of that of plain float32, None if there is no finite one. ``reason`` says why
    nothing is known, where that is so.
    """

    verdict: Literal["rounding", "bug", "unknown"]
    times: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ErrorSize:
    """The error of one model for a person: the mismatch that tells most, and what float64 says if it was asked."""

    worst: Mismatch
    rounding: Rounding | None = None


Size: TypeAlias = Literal["comparable", "doubtful", "smaller"]
"""A mismatch beside the original's: as large; float64 must tell whether it is only rounding; rounding by its looks."""

ONLY_TIES = "but only a few elements of a discrete output, one step to either side: rounding"
ONLY_ROUNDING = "but the error is only rounding: that of the original is more"
TOO_SMALL = "but the error is much smaller, and float64 cannot tell whether it is only rounding"


def size_beside(found: Sequence[Mismatch], original: Sequence[Mismatch]) -> Size:
    """The size of what a candidate shows, by that of the original. Where either is not known it is comparable."""
    mine, theirs = _measured(found), _measured(original)
    if not mine or not theirs or all(one.is_tie for one in theirs):
        return "comparable"
    mine = [one for one in mine if not one.is_tie]
    if not mine:
        return "smaller"
    theirs = [one for one in theirs if not one.is_tie]
    for one in mine:
        sort = [other for other in theirs if other.discrete == one.discrete]
        if one.discrete:  # steps count by their number
            is_as_large = bool(sort) and one.share * COMPARABLE >= max(other.share for other in sort)
        else:
            is_as_large = bool(sort) and _errs_as_much(one, sort)
        if is_as_large:
            return "comparable"
    return "doubtful"


def _errs_as_much(one: Mismatch, sort: Sequence[Mismatch]) -> bool:
    """Whether errors are about as great as any of those, both by the tolerance and by rounding.

    Where values are great, an absolute tolerance is exceeded by rounding alone.
    """

    def is_within(size: float | None, sizes: Sequence[float | None]) -> bool:
        known = [other for other in sizes if other is not None]
        return size is None or len(known) < len(sizes) or size * COMPARABLE >= max(known)

    return (
        not _is_rarer(one, sort)
        and is_within(one.times_tolerance, [other.times_tolerance for other in sort])
        and (_surely_more_than_rounding(one) or is_within(one.times_rounding, [other.times_rounding for other in sort]))
    )


def why_not(found: Sequence[Mismatch], original: Sequence[Mismatch], rounding: Rounding | None) -> str | None:
    """Why a mismatch is not a smaller form of the original's; None if it may be. ``rounding``: what float64 says."""
    size = size_beside(found, original)
    if size == "comparable":
        return None
    if size == "smaller":
        return ONLY_TIES
    if rounding is not None and rounding.verdict != "unknown":
        return ONLY_ROUNDING if rounding.verdict == "rounding" else None
    theirs = _measured(original)
    sure = any(_surely_more_than_rounding(one) and not _is_rarer(one, theirs) for one in _measured(found))
    return None if sure else TOO_SMALL


def may_be_rounding(original: Sequence[Mismatch]) -> bool:
    """Whether the original itself may only round: then float64 is asked once, before the search."""
    measured = _measured(original)
    return bool(measured) and not any(_surely_more_than_rounding(one) for one in measured)


def kind_of(found: Sequence[Mismatch]) -> str:
    """The gravest kind of several mismatches; "" of none."""
    kinds = {one.kind for one in found}
    return next((kind for kind in GRAVEST if kind in kinds), "")


def worst_of(found: Sequence[Mismatch]) -> Mismatch | None:
    """The one that a person is shown: the gravest kind, of it the greatest by the tolerances."""
    kind = kind_of(found)
    return max((one for one in found if one.kind == kind), key=_order, default=None)


def error_size(found: Sequence[Mismatch], rounding: Rounding | None) -> ErrorSize | None:
    """The error that a person is shown; None where nothing is known of it."""
    worst = worst_of(found)
    return None if worst is None else ErrorSize(worst, rounding)


def most_telling(found: Sequence[Mismatch], most: int) -> tuple[Mismatch, ...]:
    """At most ``most`` mismatches of each kind, the greatest first."""
    ranked = sorted(found, key=_order, reverse=True)
    return tuple(one for kind in GRAVEST for one in [one for one in ranked if one.kind == kind][:most])


def _order(one: Mismatch) -> tuple[bool, float, float]:
    unlimited = one.times_tolerance is None
    size = one.times_rounding if unlimited else one.times_tolerance
    return not one.discrete, math.inf if size is None else size, one.share


def _measured(found: Sequence[Mismatch]) -> list[Mismatch]:
    return [one for one in found if one.kind == "mismatch" and one.wrong]


def _is_rarer(one: Mismatch, originals: Sequence[Mismatch]) -> bool:
    """Whether few elements are wrong where many were: behind a step that rounding moved, errors are rare and great."""
    return one.share <= _RARE and one.share < _RARE * max(other.share for other in originals)


def _surely_more_than_rounding(one: Mismatch) -> bool:
    """By its size alone: many elements of a discrete output, or an error that no sum of roundings reaches."""
    if one.discrete:
        return not one.is_tie and one.wrong > 1 and one.share > _RARE
    return one.times_rounding is None or one.times_rounding >= FAR_BEYOND_ROUNDING


_MOST = (1 << 63) - 1
"""No tensor has more elements."""


def mismatches_from(trees: object) -> tuple[Mismatch, ...]:
    """Mismatches as JSON has them: a list of objects. Keys that are not known are ignored.

    What is no finite number is not known. Raises ValueError for a value of a wrong type, and for counts that cannot be.
    """
    if not isinstance(trees, list | tuple):
        raise ValueError("'mismatches' that are no list")
    mismatches = [_finite(Mismatch, tree) for tree in trees]
    for each in mismatches:
        if not 0 <= each.above <= each.wrong <= max(each.elements, 0):
            raise ValueError("a mismatch with more wrong elements than there are")
        if any(abs(number) > _MOST for number in (each.elements, *each.index)):
            raise ValueError("a mismatch with a number that is too large")
    return tuple(mismatches)


def rounding_from(tree: object) -> Rounding | None:
    """What float64 says, as JSON has it. Raises ValueError for what cannot be."""
    if tree is None:
        return None
    try:
        return _finite(Rounding, tree)
    except ValueError as error:
        raise ValueError(f"a 'rounding' that is none: {error}") from error


def _finite(kind: type[Record], tree: object) -> Record:
    """A record of JSON, in which None stands for the numbers that are not finite."""
    try:
        record = record_of(kind, tree)
    except OverflowError:
        raise ValueError("a number that is too large") from None
    odd = [name for name, value in vars(record).items() if isinstance(value, float) and not math.isfinite(value)]
    return replace(record, **dict.fromkeys(odd))  # type: ignore[type-var]


def error_text(size: ErrorSize) -> str:
    """One line: ``0.458 at [8, 4] of 'logits' · 458 times the tolerance · ... · 740 of 1024 elements``."""
    worst = size.worst
    if worst.kind != "mismatch":
        return f"{worst.kind} of {worst.output!r}"
    parts = []
    if worst.error is not None:
        values = (
            f": {worst.actual:.7g}, expected {worst.expected:.7g}"
            if worst.actual is not None and worst.expected is not None
            else ""
        )
        parts.append(f"{worst.error:.3g} at {list(worst.index)} of {worst.output!r}{values}")
    if worst.times_tolerance is not None:
        parts.append(f"{worst.times_tolerance:.3g} times the tolerance")
    if worst.discrete:
        parts.append("of a discrete output")
    elif worst.times_rounding is not None:
        parts.append(f"{worst.times_rounding:.3g} times one rounding")
    if size.rounding is not None and size.rounding.times is not None:
        parts.append(f"{size.rounding.times:.3g} times the error of plain float32")
    parts.append(f"{worst.wrong} of {worst.elements} elements")
    return " · ".join(parts)
