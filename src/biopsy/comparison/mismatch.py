"""The kind and size of a mismatch, which a smaller model must share to count as the same failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from biopsy.records import Record, record_of
from biopsy.text import count, printable

Special: TypeAlias = Literal["nan", "+inf", "-inf"]
"""What a number may be that is not finite."""

Kind: TypeAlias = Literal[
    "missing-output", "type-mismatch", "shape-mismatch",
    "nan", "nan-mismatch", "nan-expected",
    "inf", "+inf-mismatch", "+inf-expected", "-inf-mismatch", "-inf-expected",
    "mismatch",
]  # fmt: skip
"""How an output fails: one side lacks it; another type; another shape; it holds NaN or an infinity, which no output may
(``nan``), or which the other side does not have there (``nan-mismatch``), or only the other side does
(``nan-expected``); values outside the tolerances."""

GRAVEST: tuple[Kind, ...] = get_args(Kind)
"""The kinds from the gravest on; the first of these that a run shows names its failure."""

ONE_SIDED: Mapping[str, str] = {
    "nan-mismatch": "nan-expected", "+inf-mismatch": "+inf-expected", "-inf-mismatch": "-inf-expected",
    "nan-expected": "nan-mismatch", "+inf-expected": "+inf-mismatch", "-inf-expected": "-inf-mismatch",
}  # fmt: skip
"""The kinds of NaN and infinities that only one side has; each with the kind that the other side sees."""

FORMS: Mapping[str, str] = {"type-mismatch": "type", "shape-mismatch": "shape"}
"""The kinds that do not concern values; each with what differs."""

SLOWER: Final = "slower"
LARGER: Final = "larger"
COSTS: Mapping[str, str] = {SLOWER: "is slower than", LARGER: "needs more memory than"}
"""The kinds of a failure for its cost, in words. The outputs are right, as far as they were compared."""

NOT_FINITE: Mapping[str, str] = {"nan": "NaN", "inf": "infinity"}
"""The kinds of what ``--validate`` objects to, in words. The sign of an infinity does not count there: a layer
that only changes it would be called the failure."""


def special_of(kind: str) -> str:
    """The NaN or infinity of a kind, in words; "" if it is about another difference."""
    value = kind.removesuffix("-mismatch").removesuffix("-expected")
    return {"nan": "NaN", "inf": "infinity", "+inf": "infinity", "-inf": "-infinity"}.get(value, "")


MOST_OF_A_KIND = 8
"""Mismatches of one kind that a verdict file holds."""

COMPARABLE = 10.0
"""An error that is at most this many times smaller than the original's counts as the same failure."""

_RARE = 0.01
_ONE_SIDED = 0.75
_FEWEST_FOR_A_SIDE = 8
"""This many random signs all agree in less than 1 % of all cases."""

FAR_BEYOND_ROUNDING = 2.0**12
"""An error in roundings of the greatest value: that of a sum of 10^7 terms, and half of one float16 rounding."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """How one output differs from its expected value. None: not known, or not finite.

    ``wrong`` of ``elements`` are outside the tolerances, and ``above`` of these are greater than expected. ``error`` is
    the greatest |actual - expected|, at ``index``, between ``actual`` and ``expected``. ``times_tolerance`` is the
    greatest quotient of an error and the allowed one; ``times_rounding`` is ``error`` divided by one rounding of the
    greatest expected value in the output's type. ``quantum`` is the distance between neighbouring values of a discrete
    output (integers, Floor, dequantized values; 0 if they have no order). ``passing_atol`` is the smallest atol that
    would pass.

    If types or shapes differ, ``form`` is that of the output in words, ``expected_form`` the expected one, and
    ``declared_form`` the one that the model declares, "" if it does not say.
    """

    output: str
    kind: str = "mismatch"
    elements: int = 0
    wrong: int = 0
    above: int = 0
    error: float | None = None
    index: tuple[int, ...] = ()
    actual: int | float | None = None
    expected: int | float | None = None
    times_tolerance: float | None = None
    times_rounding: float | None = None
    quantum: float | None = None
    passing_atol: float | None = None
    form: str = ""
    expected_form: str = ""
    declared_form: str = ""

    def value_text(self, value: int | float) -> str:
        """A value of the output in up to seven digits; a whole number of a discrete output in all of its digits."""
        if isinstance(value, int):
            return str(value)
        is_whole = self.quantum is not None and value.is_integer() and -(2**63) <= value < 2**63
        return f"{value:.0f}" if is_whole else f"{value:.7g}"

    @property
    def is_of_form(self) -> bool:
        """Whether the type or the shape is wrong, whatever the values are."""
        return self.kind in FORMS

    @property
    def is_as_declared(self) -> bool:
        """Whether this side gives the type or the shape that the model declares."""
        return self.is_of_form and self.form == self.declared_form != ""

    @property
    def from_other_side(self) -> Mismatch:
        """The same as the other side sees it."""
        kind = ONE_SIDED.get(self.kind, self.kind)
        return replace(
            self,
            kind=kind,
            form=self.expected_form,
            expected_form=self.form,
            actual=self.expected,
            expected=self.actual,
            above=self.wrong - self.above,
        )

    @property
    def share(self) -> float:
        """The share of wrong elements, 0 to 1."""
        return self.wrong / self.elements if self.elements else 0.0

    @property
    def bias(self) -> float:
        """The direction of wrong elements: -1 all below, 0 as many above as below, 1 all above."""
        return (2 * self.above - self.wrong) / self.wrong if self.wrong else 0.0

    @property
    def discrete(self) -> bool:
        """Whether the output has only few values, so that a rounding error is invisible or a whole step."""
        return self.quantum is not None

    @property
    def is_tie(self) -> bool:
        """Whether rounding may have moved a few elements by one step, in both directions.

        A wrong truncation does not look like this: it moves half of the elements in one direction.
        """
        if self.quantum is None or self.error is None or self.share > _RARE:
            return False
        one_sided = self.wrong >= _FEWEST_FOR_A_SIDE and abs(self.bias) > _ONE_SIDED
        return 0 < self.error <= 1.001 * self.quantum and not one_sided


@dataclass(frozen=True)
class Rounding:
    """Whether rounding explains an error, by a comparison with float64: see ``noise.py``.

    ``times`` is the error as a multiple of plain float32's, None if it is not finite. ``reason`` explains an "unknown"
    verdict.
    """

    verdict: Literal["rounding", "bug", "unknown"]
    times: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ErrorSize:
    """The error of one model to show to the user: the worst mismatch, and the comparison with float64, if made."""

    worst: Mismatch
    rounding: Rounding | None = None


Size: TypeAlias = Literal["comparable", "doubtful", "smaller"]
"""The size of a candidate's mismatch by the original's: as large; to be compared with float64; probably rounding."""

ONLY_TIES = "but only a few elements of a discrete output, one step to either side: rounding"
ONLY_ROUNDING = "but the error is only rounding: that of the original is more"
TOO_SMALL = "but the error is much smaller, and float64 cannot tell whether it is only rounding"


def size_beside(mismatches: Sequence[Mismatch], original: Sequence[Mismatch]) -> Size:
    """The size of a candidate's mismatches by the original's; comparable if either is not known."""
    candidates, originals = _measured(mismatches), _measured(original)
    if not candidates or not originals or all(each.is_tie for each in originals):
        return "comparable"
    candidates = [each for each in candidates if not each.is_tie]
    if not candidates:
        return "smaller"
    originals = [each for each in originals if not each.is_tie]
    for candidate in candidates:
        alike = [each for each in originals if each.discrete == candidate.discrete]
        if candidate.discrete:  # only the number of wrong elements counts
            is_as_large = bool(alike) and candidate.share * COMPARABLE >= max(each.share for each in alike)
        else:
            is_as_large = bool(alike) and _errs_as_much(candidate, alike)
        if is_as_large:
            return "comparable"
    return "doubtful"


def _errs_as_much(candidate: Mismatch, originals: Sequence[Mismatch]) -> bool:
    """Whether an error is about as great as the originals', by the tolerance and by rounding.

    Both are needed, since rounding alone may exceed an absolute tolerance if values are great.
    """

    def is_within(size: float | None, sizes: Sequence[float | None]) -> bool:
        known = [each for each in sizes if each is not None]
        return size is None or len(known) < len(sizes) or size * COMPARABLE >= max(known)

    if _is_rarer(candidate, originals):
        return False
    by_rounding = is_within(candidate.times_rounding, [each.times_rounding for each in originals])
    by_tolerance = is_within(candidate.times_tolerance, [each.times_tolerance for each in originals])
    return by_tolerance and (by_rounding or _surely_more_than_rounding(candidate))


def why_not(mismatches: Sequence[Mismatch], original: Sequence[Mismatch], rounding: Rounding | None) -> str | None:
    """Why a candidate's mismatches are not the original's failure; None if they may be."""
    size = size_beside(mismatches, original)
    if size == "comparable":
        return None
    if size == "smaller":
        return ONLY_TIES
    if rounding is not None and rounding.verdict != "unknown":
        return ONLY_ROUNDING if rounding.verdict == "rounding" else None
    originals = _measured(original)
    is_sure = any(_surely_more_than_rounding(each) and not _is_rarer(each, originals) for each in _measured(mismatches))
    return None if is_sure else TOO_SMALL


def may_be_rounding(original: Sequence[Mismatch]) -> bool:
    """Whether the original's mismatches may be only rounding, which is then compared with float64 before the search."""
    measured = _measured(original)
    return bool(measured) and not any(_surely_more_than_rounding(each) for each in measured)


def kind_of(mismatches: Sequence[Mismatch]) -> str:
    """The gravest kind of mismatches; empty if there are none."""
    kinds = {each.kind for each in mismatches}
    return next((kind for kind in GRAVEST if kind in kinds), "")


def worst_of(mismatches: Sequence[Mismatch]) -> Mismatch | None:
    """The greatest mismatch of the gravest kind; None if there are none."""
    kind = kind_of(mismatches)
    return max((each for each in mismatches if each.kind == kind), key=_order, default=None)


def error_size(mismatches: Sequence[Mismatch], rounding: Rounding | None) -> ErrorSize | None:
    """The error to show to the user; None if there are no mismatches with anything."""
    worst = worst_of(mismatches)
    return None if worst is None or worst.kind in NOT_FINITE else ErrorSize(worst, rounding)


def most_telling(mismatches: Sequence[Mismatch], most: int) -> tuple[Mismatch, ...]:
    """At most ``most`` mismatches of each kind, the greatest first."""
    ranked = sorted(mismatches, key=_order, reverse=True)
    return tuple(each for kind in GRAVEST for each in [each for each in ranked if each.kind == kind][:most])


def _order(mismatch: Mismatch) -> tuple[bool, float, float]:
    size = mismatch.times_rounding if mismatch.times_tolerance is None else mismatch.times_tolerance
    return not mismatch.discrete, math.inf if size is None else size, mismatch.share


def _measured(mismatches: Sequence[Mismatch]) -> list[Mismatch]:
    return [each for each in mismatches if each.kind == "mismatch" and each.wrong]


def _is_rarer(candidate: Mismatch, originals: Sequence[Mismatch]) -> bool:
    """Whether few elements are wrong and many were: after a step moved by rounding, errors are rare and great."""
    return candidate.share <= _RARE and candidate.share < _RARE * max(each.share for each in originals)


def _surely_more_than_rounding(mismatch: Mismatch) -> bool:
    """By its size alone: many elements of a discrete output, or an error that no sum of roundings reaches."""
    if mismatch.discrete:
        return not mismatch.is_tie and mismatch.wrong > 1 and mismatch.share > _RARE
    return mismatch.times_rounding is None or mismatch.times_rounding >= FAR_BEYOND_ROUNDING


_MOST_ELEMENTS = (1 << 63) - 1


def mismatches_from(trees: object) -> tuple[Mismatch, ...]:
    """Mismatches from JSON, a list of objects. Unknown keys are ignored; numbers that are not finite become None.

    Raises ValueError for a value of a wrong type, and for impossible counts.
    """
    if not isinstance(trees, list | tuple):
        raise ValueError("'mismatches' that are not a list")
    mismatches = [_finite(Mismatch, tree) for tree in trees]
    for each in mismatches:
        if not 0 <= each.above <= each.wrong <= max(each.elements, 0):
            raise ValueError("a mismatch with more wrong elements than there are")
        if any(abs(number) > _MOST_ELEMENTS for number in (each.elements, *each.index)):
            raise ValueError("a mismatch with a number that is too large")
    return tuple(mismatches)


def rounding_from(tree: object) -> Rounding | None:
    """A Rounding from JSON. Raises ValueError if it is invalid."""
    if tree is None:
        return None
    try:
        return _finite(Rounding, tree)
    except ValueError as error:
        raise ValueError(f"a 'rounding' that is none: {error}") from error


def _finite(kind: type[Record], tree: object) -> Record:
    """A record from JSON, with None for numbers that are not finite."""
    try:
        record = record_of(kind, tree)
        odd = [name for name, each in vars(record).items() if isinstance(each, int | float) and not math.isfinite(each)]
    except OverflowError:
        raise ValueError("a number that is too large") from None
    return replace(record, **dict.fromkeys(odd))  # type: ignore[type-var]


def error_text(size: ErrorSize, sides: Sequence[str] = ()) -> str:
    """One line: ``0.458 at [8, 4] of 'logits' · 458 times the tolerance · ... · 740 of 1024 elements``.

    ``sides`` are the names of the two engines that give these values if neither is known to be right.
    """
    worst = size.worst
    if special := special_of(worst.kind):
        only = {"mismatch": " on this side only", "expected": " on the other side only"}
        side = only.get(worst.kind.rpartition("-")[2], "")
        return f"{special} in {worst.wrong} of {count(worst.elements, 'element')} of {worst.output!r}{side}"
    if worst.is_of_form:
        return form_text(worst, "the other side")
    if worst.kind == "missing-output":
        return f"{worst.output!r} is missing"
    if worst.kind != "mismatch":
        return f"{worst.kind} of {worst.output!r}"
    parts = []
    if worst.error is not None:
        parts.append(f"{worst.error:.3g} at {list(worst.index)} of {worst.output!r}{_values_text(worst, sides)}")
    if worst.times_tolerance is not None:
        parts.append(f"{worst.times_tolerance:.3g} times the tolerance")
    if worst.discrete:
        parts.append("of a discrete output")
    elif worst.times_rounding is not None and (size.rounding is None or size.rounding.times is None):
        parts.append(f"{worst.times_rounding:.3g} times the rounding error of its type")
    if size.rounding is not None and size.rounding.times is not None:
        parts.append(f"{size.rounding.times:.3g} times the rounding error of a plain run")
    parts.append(f"{worst.wrong} of {count(worst.elements, 'element')}")
    return " · ".join(parts)


def _values_text(worst: Mismatch, sides: Sequence[str]) -> str:
    if worst.actual is None or worst.expected is None:
        return ""
    actual, expected = map(worst.value_text, (worst.actual, worst.expected))
    return f": {sides[0]} gives {actual}, {sides[1]} gives {expected}" if sides else f": {actual}, expected {expected}"


def form_text(mismatch: Mismatch, other: str) -> str:
    """An output of a wrong type or shape: ``'y' of shape [1, 26] where the model declares [1, 24]``.

    A declaration is told as one: of a part of a model, it is what shape inference wrote. If the model declares none, or
    the one given, the text names what the ``other`` side gives; "" if that is not an engine.
    """
    of, form, expected, declared = FORMS[mismatch.kind], mismatch.form, mismatch.expected_form, mismatch.declared_form
    if not form:
        return f"{mismatch.output!r} of another {of} than {other or 'expected'}"
    given = f"{mismatch.output!r} of {of} {printable(form)}"
    if declared and (declared == expected or expected == form):
        return f"{given} where the model declares {printable(declared)}"
    as_declared = ", as the model declares," if declared == form else ""
    where = f"{other} gives {printable(expected)}" if other else f"{printable(expected)} is expected"
    return f"{given}{as_declared} where {where}"
