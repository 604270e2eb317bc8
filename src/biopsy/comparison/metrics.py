"""Numbers about tensors: statistics of one, errors between two, NaN and infinities. Pure functions; nothing is
decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from biopsy.tensors.results import Array, RunnerResult, release
from biopsy.tensors.types import is_extended, is_text, text_bytes, widened

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Bools: TypeAlias = npt.NDArray[np.bool_]
Index: TypeAlias = tuple[int, ...]

Scalar: TypeAlias = float | int | bool | complex | str | bytes
"""One element, as Python has it."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The values of one tensor. All but the counts are of its finite elements; of complex ones the magnitudes.

    ``minimum``, ``maximum``, ``mean``, ``std`` and ``median`` are NaN, and the places None, where nothing is finite.
    Minimum and maximum of integers are exact.
    """

    elements: int
    nan: int
    inf: int
    minimum: float = math.nan
    minimum_at: Index | None = None
    maximum: float = math.nan
    maximum_at: Index | None = None
    mean: float = math.nan
    std: float = math.nan
    median: float = math.nan


@dataclass(frozen=True)
class ErrorStatistics:
    """Statistics of the absolute or the relative errors of all elements; inf where only one side is finite.

    All but ``maximum`` are NaN where they were not asked for.
    """

    maximum: float
    mean: float
    median: float
    quantile: float

    def of(self, stat: str) -> float:
        """The statistic that the tolerances name: "max", "mean", "median" or "quantile"."""
        value: float = getattr(self, "maximum" if stat == "max" else stat)
        return value


NO_ERROR = ErrorStatistics(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Element:
    """One element of two tensors: its index, both values, and the error between them."""

    index: Index
    actual: Scalar
    expected: Scalar
    error: float


def numeric(array: Array) -> Array:
    """The tensor in a type that numpy computes with: extended types widened without loss, bool as 0 and 1."""
    if is_extended(array.dtype):
        return widened(array)
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


def at(array: Array, flat: int) -> Index:
    """The index of the element at a position in C order."""
    return tuple(int(part) for part in np.unravel_index(flat, array.shape))


def element(array: Array, index: Index) -> Scalar:
    """One element as a Python value; extended floats as float."""
    value: Any = array[index]
    if is_extended(array.dtype):
        value = widened(np.asarray(value))[()]
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[no-any-return]


def worst(actual: Array, expected: Array, values: Floats) -> Element | None:
    """The element with the greatest of the flat error ``values``; None if there is none above 0."""
    if values.size == 0:
        return None
    position = int(values.argmax())
    error = float(values[position])
    return element_of_both(actual, expected, position, error) if error else None


def element_of_both(actual: Array, expected: Array, position: int, error: float) -> Element:
    """The element at a position in C order, which has this error."""
    index = at(actual, position)
    return Element(index, element(actual, index), element(expected, index), error)


def statistics(array: Array) -> Statistics | None:
    """Statistics of a tensor; None for strings."""
    if is_text(array):
        return None
    values = numeric(array)
    if values.dtype.kind == "c":
        values = np.abs(values)
    nan = inf = 0
    flat = values.reshape(-1)
    positions = None
    if values.dtype.kind == "f":
        finite = np.isfinite(flat)
        if not finite.all():
            nan = int(np.isnan(flat).sum())
            inf = flat.size - nan - int(finite.sum())
            positions = np.flatnonzero(finite)
            flat = flat[positions]
    if flat.size == 0:
        return Statistics(elements=values.size, nan=nan, inf=inf)
    low, high = int(flat.argmin()), int(flat.argmax())
    places = (low, high) if positions is None else (int(positions[low]), int(positions[high]))
    precise = flat.astype(_wide(flat.dtype), copy=False)
    largest = float(max(precise.max(), -precise.min()))
    if largest < 1e150:
        mean, std = float(precise.mean()), float(precise.std())
    else:
        # The squares, and even the sum, of great finite values would overflow.
        scaled = precise / largest
        mean, std = float(scaled.mean()) * largest, float(scaled.std()) * largest
    (median,) = quantiles(precise, 0.5)
    return Statistics(
        elements=values.size,
        nan=nan,
        inf=inf,
        minimum=flat[low].item(),
        minimum_at=at(values, places[0]),
        maximum=flat[high].item(),
        maximum_at=at(values, places[1]),
        mean=mean,
        std=std,
        median=median,
    )


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    """The type to compute in: double, or what is more precise already."""
    return np.longdouble if dtype.kind == "f" and dtype.itemsize > 8 else np.float64


def histogram(array: Array, bins: int = 10) -> list[tuple[float, float, int]]:
    """How many finite elements lie in each of ``bins`` equal intervals: (start, end, count), lowest first.

    Every interval holds its start, the last one its end too. There is only one where all values are equal, or too close
    to be told apart. Of complex numbers the magnitudes count. Empty for strings and where nothing is finite.
    """
    if is_text(array):
        return []
    values = numeric(array)
    flat = np.abs(values).reshape(-1) if values.dtype.kind == "c" else values.reshape(-1)
    finite = flat[np.isfinite(flat)].astype(np.float64)
    if finite.size == 0:
        return []
    low, high = float(finite.min()), float(finite.max())
    if low + (high / bins - low / bins) in {low, high}:
        return [(low, high, finite.size)]
    # Halved, for the distance from the least to the greatest value may be more than a float64 holds.
    counts, edges = np.histogram(finite / 2, bins)
    ends = [float(edge) * 2 for edge in edges]
    return [(ends[place], ends[place + 1], int(count)) for place, count in enumerate(counts)]


# Equality


def differing(actual: Array, expected: Array) -> Bools:
    """Which elements of two tensors of one shape differ by value, in that shape: exactly, whatever their types.

    Two NaN are equal, and so are both zeros; the parts of complex numbers are compared each; strings by their bytes.
    Text and numbers always differ.
    """
    if is_text(actual) or is_text(expected):
        if not (is_text(actual) and is_text(expected)):
            return np.ones(actual.shape, np.bool_)
        if actual.dtype.kind == expected.dtype.kind == "U":
            return np.asarray(actual != expected)
        return np.asarray(text_bytes(actual) != text_bytes(expected), np.bool_)
    left, right = numeric(actual), numeric(expected)
    if "c" in (left.dtype.kind, right.dtype.kind):
        return _differing_real(left.real, right.real) | _differing_real(left.imag, right.imag)
    return _differing_real(left, right)


def _differing_real(left: Array, right: Array) -> Bools:
    kinds = left.dtype.kind, right.dtype.kind
    if "f" not in kinds and kinds[0] != kinds[1]:
        signed, unsigned = (left, right) if left.dtype.kind == "i" else (right, left)
        return np.asarray((signed < 0) | (signed.astype(np.int64).view(np.uint64) != unsigned.astype(np.uint64)))
    if kinds == ("f", "f") or kinds[0] == kinds[1]:
        found: Bools = np.asarray(left != right)
        if "f" in kinds and found.any():
            found &= ~(np.isnan(left) & np.isnan(right))
        return found
    whole, real = (right, left) if kinds[0] == "f" else (left, right)
    # No float type need hold every 64-bit integer, but each can be asked which integer it is.
    info, real = np.iinfo(whole.dtype), real.astype(_wide(real.dtype))
    inside = (real >= float(info.min)) & (real < float(info.max + 1)) & (np.trunc(real) == real)
    return np.asarray(~inside | (np.where(inside, real, 0).astype(whole.dtype) != whole))


# Errors


@dataclass(frozen=True)
class Errors:
    """Errors between two tensors of one shape, flat, in C order.

    ``absolute`` is |actual - expected|, ``relative`` that divided by |expected|, ``magnitude`` is |expected|. Equal
    elements have no error, nor have two NaN or two infinities of the same sign; where only one side is finite, or the
    infinities differ, the error is inf and ``broken`` counts it. Elements that differ always have an error above 0.
    """

    absolute: Floats
    relative: Floats
    magnitude: Floats
    broken: int


def errors_between(actual: Array, expected: Array) -> Errors:
    """The errors between two numeric tensors of one shape.

    Computed in float64 or better whatever the types; between integers exactly, then rounded up to float64.
    """
    left, right = numeric(actual).reshape(-1), numeric(expected).reshape(-1)
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        absolute = _integer_differences(left, right)
        magnitude = np.abs(right.astype(np.float64))
        return Errors(absolute, _divided(absolute, magnitude), magnitude, 0)
    wide = _common_wide(left.dtype, right.dtype)
    odd = ~(np.isfinite(left) & np.isfinite(right))
    same = odd & ~differing(left, right) if odd.any() else None
    # float64 tells two smaller floats apart whatever they are; any other pair may be nearer than rounding shows.
    differ = None if wide is np.float64 else differing(left, right)
    # Copies, and then worked on in place: a tensor may be a good part of the memory there is.
    left, right = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        left -= right
        absolute, magnitude = (
            np.abs(side) if side.dtype.kind == "c" else np.abs(side, out=side) for side in (left, right)
        )
    broken = 0
    if same is not None:
        absolute[same] = 0
        absolute[odd & ~same] = np.inf
        broken = int((odd & ~same).sum())
    if differ is not None:
        absolute[differ] = np.maximum(absolute[differ], LEAST)
    del left, right, odd, same, differ
    return Errors(absolute, _divided(absolute, magnitude), magnitude, broken)


LEAST = math.ulp(0.0)
"""The least number above 0: the error of what differs by less than can be told."""


def _common_wide(left: np.dtype[Any], right: np.dtype[Any]) -> type[np.inexact[Any]]:
    long = any(dtype.itemsize > (16 if dtype.kind == "c" else 8) for dtype in (left, right) if dtype.kind in "fc")
    # float64 cannot hold every 64-bit integer that is compared with a float; where there is no more, it must do.
    long = long or any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in (left, right))
    if "c" in (left.kind, right.kind):
        return np.clongdouble if long else np.complex128
    return np.longdouble if long else np.float64


def _integer_differences(left: Array, right: Array) -> Floats:
    """|left - right| without overflow, rounded up where float64 does not hold it."""
    if left.dtype.itemsize < 8 and right.dtype.itemsize < 8:
        return np.abs(left.astype(np.int64) - right.astype(np.int64)).astype(np.float64)
    if left.dtype.kind != right.dtype.kind:
        if not any(side.dtype.kind == "i" and bool((side < 0).any()) for side in (left, right)):
            left, right = left.astype(np.uint64), right.astype(np.uint64)
        else:
            # A negative number and perhaps one above 2**63: only Python's integers hold both.
            exact: Array = np.abs(left.astype(object) - right.astype(object))
            return np.array(
                [
                    float(value) if float(value) >= value else math.nextafter(float(value), math.inf)
                    for value in exact.tolist()
                ],
                np.float64,
            )
    swap = left < right
    # In two's complement the difference of the greater and the smaller is right modulo 2**64, which it is below.
    great = np.where(swap, right, left).astype(np.int64 if left.dtype.kind == "i" else np.uint64).view(np.uint64)
    small = np.where(swap, left, right).astype(np.int64 if left.dtype.kind == "i" else np.uint64).view(np.uint64)
    values = great - small
    found = values.astype(np.float64)
    held = np.where(found < 2.0**64, found, 0).astype(np.uint64)
    below = (held < values) & (found < 2.0**64)
    return np.where(below, np.nextafter(found, np.inf), found)


def greatest_finite(magnitude: Floats) -> Any:
    """The greatest finite one of values that are not below 0, in their type; 0 if there is none."""
    return magnitude.max(initial=0, where=np.isfinite(magnitude))


def _divided(absolute: Floats, magnitude: Floats) -> Floats:
    """Relative errors; 0 where there is no error even if the expected value is 0, inf where it is 0 or not finite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative: Floats = np.divide(absolute, magnitude)
    relative[~np.isfinite(relative)] = np.inf
    # A small error of a great value is one still.
    relative[relative < LEAST] = LEAST
    relative[absolute == 0] = 0
    return relative


def error_statistics(values: Floats, quantile: float) -> ErrorStatistics:
    """Statistics of errors that are 0 or more and may be inf; all 0 for an empty tensor."""
    maximum = float(values.max(initial=0))
    if maximum == 0:
        return NO_ERROR
    median, at_quantile = quantiles(values, 0.5, quantile)
    with np.errstate(over="ignore"):
        mean = max(float(values.mean()), LEAST)
        return ErrorStatistics(maximum, mean, median, at_quantile)


def quantiles(values: Floats, *wanted: float) -> list[float]:
    """The quantiles (each 0 to 1) of at least one value, interpolated as numpy does it, in one pass and not in four.

    Between a finite and an infinite value nothing can be interpolated: it is the greater one then.
    """
    ranks = [quantile * (values.size - 1) for quantile in wanted]
    parted = np.partition(values, sorted({math.floor(rank) for rank in ranks} | {math.ceil(rank) for rank in ranks}))
    found = []
    for rank in ranks:
        low, high = float(parted[math.floor(rank)]), float(parted[math.ceil(rank)])
        part = rank - math.floor(rank)
        found.append(high if math.isinf(high) or low == high else low * (1 - part) + high * part)
    return found


# Tolerances that would pass


def outside(errors: Errors, atol: float, rtol: float) -> Bools:
    """Which elements do not satisfy |actual - expected| <= atol + rtol * |expected|; no error always satisfies it."""
    with np.errstate(invalid="ignore", over="ignore"):
        limits = atol + rtol * errors.magnitude
    # An infinite error is outside even when the expected value, and so the limit, is infinite too.
    beyond: Bools = (errors.absolute > limits) | np.isinf(errors.absolute)
    return beyond & (errors.absolute > 0)


def shares(errors: Errors, atol: float, rtol: float) -> Floats:
    """How many times what is allowed there each error is, |error| / (atol + rtol * |expected|); 0 where there is none.

    inf where nothing is allowed, or the error is infinite.
    """
    with np.errstate(all="ignore"):
        found: Floats = errors.absolute / (atol + rtol * errors.magnitude)
    found[~np.isfinite(found)] = np.inf
    found[errors.absolute == 0] = 0
    return found


def passing(errors: Errors, atol: float, rtol: float) -> tuple[float | None, float | None]:
    """The smallest atol, and the smallest rtol, with which every element passes beside the other one as it is.

    Rounded up to three digits; None if there is none.
    """
    where = outside(errors, atol, rtol)
    absolute, magnitude = errors.absolute[where], errors.magnitude[where]
    if not absolute.size:
        return atol, rtol
    if not np.isfinite(absolute).all():
        return None, None
    by_rtol = None
    with np.errstate(over="ignore"):
        by_atol = rounded_up((absolute - rtol * magnitude).max(), lambda found: absolute > found + rtol * magnitude)
        if np.isfinite(magnitude).all() and (magnitude > 0).all():
            least = ((absolute - atol) / magnitude).max()
            by_rtol = rounded_up(least, lambda found: absolute > atol + found * magnitude)
    return by_atol, by_rtol


def rounded_up(value: Any, is_less: Callable[[float], Any] = lambda _: False) -> float | None:
    """The value rounded up to three digits, as often as ``is_less`` than it has to be; None if it is not finite."""
    context = Context(prec=3, rounding=ROUND_CEILING)
    found = float(context.create_decimal(Decimal(float(value))))
    while np.any(is_less(found)):  # rounding inside a sum may still leave an element outside
        found = float(context.create_decimal(Decimal(math.nextafter(found, math.inf))))
    return found if math.isfinite(found) else None


# The outputs of a runner that hold NaN or infinities.


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """An output that holds NaN or infinities: how many of each, where the first one is, and its value."""

    iteration: int
    name: str
    elements: int
    nan: int
    inf: int
    first: Index
    value: Scalar


def not_finite(result: RunnerResult) -> Iterator[NotFinite]:
    """The outputs of a runner that hold NaN or infinities, in order."""
    for number, iteration in enumerate(result.iterations):
        for name, array in iteration.outputs.items():
            values = array if is_text(array) else numeric(array)
            if values.dtype.kind not in "fc":
                continue
            non_finite = ~np.isfinite(values)
            if non_finite.any():
                nan = int(np.isnan(values).sum())
                first = at(values, int(non_finite.reshape(-1).argmax()))
                inf = int(non_finite.sum()) - nan
                yield NotFinite(
                    iteration=number,
                    name=name,
                    elements=values.size,
                    nan=nan,
                    inf=inf,
                    first=first,
                    value=element(array, first),
                )
            release(array)
