"""Pure functions that measure tensors: statistics of one, errors between two, NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from biopsy.comparison.mismatch import Mismatch, Special
from biopsy.tensors.results import Array, RunnerResult, release
from biopsy.tensors.types import is_extended, is_text, text_bytes, widened

if TYPE_CHECKING:
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.floating[Any]]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Index: TypeAlias = tuple[int, ...]

Scalar: TypeAlias = float | int | bool | complex | str | bytes
"""One element as a Python value."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of a tensor's finite elements (of the magnitudes of complex ones), and counts of all elements.

    ``minimum``, ``maximum``, ``mean``, ``std`` and ``median`` are NaN, and the places None, if nothing is finite.
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
    """Statistics of absolute or relative errors, which are inf for elements that are finite on one side only.

    All but ``maximum`` are NaN if they were not computed.
    """

    maximum: float
    mean: float
    median: float
    quantile: float

    def of(self, stat: str) -> float:
        """The statistic of this name: "max", "mean", "median" or "quantile"."""
        value: float = getattr(self, "maximum" if stat == "max" else stat)
        return value


NO_ERROR = ErrorStatistics(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Element:
    """One element of two tensors: its index, both values, and its error."""

    index: Index
    actual: Scalar
    expected: Scalar
    error: float


def numeric(array: Array) -> Array:
    """The tensor in a type that NumPy computes with: extended types are widened without loss, bool becomes 0 and 1."""
    if is_extended(array.dtype):
        return widened(array)
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


def at(array: Array, flat: int) -> Index:
    """The index of the element at a position in C order."""
    return tuple(int(part) for part in np.unravel_index(flat, array.shape))


def element(array: Array, index: Index) -> Scalar:
    """One element as a Python value; extended floats become float."""
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
    """The element at a position in C order, with this error."""
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
        # The squares, and even the sum, of huge values would overflow.
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
    """The type to compute in: float64, or longdouble for a type that is wider."""
    return np.longdouble if dtype.kind == "f" and dtype.itemsize > 8 else np.float64


def histogram(array: Array, bins: int = 10) -> list[tuple[float, float, int]]:
    """The number of finite elements in each of ``bins`` equal intervals: (start, end, count), lowest first.

    An interval includes its start, the last one also its end. There is only one interval if values are equal or too
    close together. Complex numbers count by magnitude. Empty for strings and if nothing is finite.
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
    # Halved, since the distance from the least to the greatest value may overflow float64.
    counts, edges = np.histogram(finite / 2, bins)
    ends = [float(edge) * 2 for edge in edges]
    return [(ends[place], ends[place + 1], int(count)) for place, count in enumerate(counts)]


def differing(actual: Array, expected: Array) -> Bools:
    """Which elements of two tensors of one shape differ by value, exactly, whatever their types.

    Two NaN are equal, and so are both zeros. Complex numbers are compared part by part, strings by their bytes. Strings
    and numbers always differ.
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
        unequal: Bools = np.asarray(left != right)
        if "f" in kinds and unequal.any():
            unequal &= ~(np.isnan(left) & np.isnan(right))
        return unequal
    integer, real = (right, left) if kinds[0] == "f" else (left, right)
    # A float type may not hold every 64-bit integer, so compare as integers, where the float is one.
    info, real = np.iinfo(integer.dtype), real.astype(_wide(real.dtype))
    is_integer = (real >= float(info.min)) & (real < float(info.max + 1)) & (np.trunc(real) == real)
    return np.asarray(~is_integer | (np.where(is_integer, real, 0).astype(integer.dtype) != integer))


@dataclass(frozen=True)
class Errors:
    """Errors between two tensors of one shape, flat, in C order.

    ``absolute`` is |actual - expected|, ``magnitude`` is |expected|, ``relative`` is their quotient. Equal elements
    have no error, nor have two NaN or two infinities of the same sign; if only one side is finite, or infinities
    differ, the error is inf and ``broken`` counts it. Elements that differ always have an error above 0.
    """

    absolute: Floats
    relative: Floats
    magnitude: Floats
    broken: int


def errors_between(actual: Array, expected: Array) -> Errors:
    """The errors between two tensors of one shape.

    They are computed in float64 or better; between integers exactly, then rounded up to float64. Two
    different strings differ by 1; the magnitude of a string is 0.
    """
    if is_text(actual):
        differ_by = differing(actual, expected).reshape(-1).astype(np.float64)
        return Errors(differ_by, differ_by, np.zeros_like(differ_by), 0)
    left, right = numeric(actual).reshape(-1), numeric(expected).reshape(-1)
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        absolute = _integer_differences(left, right)
        magnitude = np.abs(right.astype(np.float64))
        return Errors(absolute, _divided(absolute, magnitude), magnitude, 0)
    wide = _common_wide(left.dtype, right.dtype)
    non_finite = ~(np.isfinite(left) & np.isfinite(right))
    same = non_finite & ~differing(left, right) if non_finite.any() else None
    # In float64, the difference of two narrower floats that differ is never 0; others may round to 0.
    differ = None if wide is np.float64 else differing(left, right)
    # Copied once and changed in place, since a tensor may take a good part of the memory.
    left, right = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        left -= right
        absolute, magnitude = (
            np.abs(side) if side.dtype.kind == "c" else np.abs(side, out=side) for side in (left, right)
        )
    broken = 0
    if same is not None:
        absolute[same] = 0
        absolute[non_finite & ~same] = np.inf
        broken = int((non_finite & ~same).sum())
    if differ is not None:
        absolute[differ] = np.maximum(absolute[differ], LEAST)
    del left, right, non_finite, same, differ
    return Errors(absolute, _divided(absolute, magnitude), magnitude, broken)


LEAST = math.ulp(0.0)
"""The least number above 0: the error of elements whose difference rounds to 0."""


def _common_wide(left: np.dtype[Any], right: np.dtype[Any]) -> type[np.inexact[Any]]:
    long = any(dtype.itemsize > (16 if dtype.kind == "c" else 8) for dtype in (left, right) if dtype.kind in "fc")
    # float64 cannot hold every 64-bit integer; longdouble can, where it is wider than float64.
    long = long or any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in (left, right))
    if "c" in (left.kind, right.kind):
        return np.clongdouble if long else np.complex128
    return np.longdouble if long else np.float64


def _integer_differences(left: Array, right: Array) -> Floats:
    """|left - right| without overflow, rounded up if float64 cannot hold it."""
    if left.dtype.itemsize < 8 and right.dtype.itemsize < 8:
        return np.abs(left.astype(np.int64) - right.astype(np.int64)).astype(np.float64)
    if left.dtype.kind != right.dtype.kind:
        if not any(side.dtype.kind == "i" and bool((side < 0).any()) for side in (left, right)):
            left, right = left.astype(np.uint64), right.astype(np.uint64)
        else:
            # A negative number and perhaps one above 2**63: only Python's integers can hold both.
            exact: Array = np.abs(left.astype(object) - right.astype(object))
            return np.array(
                [
                    float(value) if float(value) >= value else math.nextafter(float(value), math.inf)
                    for value in exact.tolist()
                ],
                np.float64,
            )
    swap = left < right
    # In two's complement, greater - smaller is right modulo 2**64, and it is less than that.
    greater = np.where(swap, right, left).astype(np.int64 if left.dtype.kind == "i" else np.uint64).view(np.uint64)
    smaller = np.where(swap, left, right).astype(np.int64 if left.dtype.kind == "i" else np.uint64).view(np.uint64)
    exact_values = greater - smaller
    rounded = exact_values.astype(np.float64)
    back = np.where(rounded < 2.0**64, rounded, 0).astype(np.uint64)
    is_below = (back < exact_values) & (rounded < 2.0**64)
    return np.where(is_below, np.nextafter(rounded, np.inf), rounded)


def greatest_finite(magnitude: Floats) -> Any:
    """The greatest finite magnitude, in its type; 0 if there is none."""
    return magnitude.max(initial=0, where=np.isfinite(magnitude))


def _divided(absolute: Floats, magnitude: Floats) -> Floats:
    """Relative errors: 0 if there is no error, else inf if the expected value is 0 or not finite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative: Floats = np.divide(absolute, magnitude)
    relative[~np.isfinite(relative)] = np.inf
    # An error must not vanish because the quotient rounds to 0.
    relative[relative < LEAST] = LEAST
    relative[absolute == 0] = 0
    return relative


def error_statistics(values: Floats, quantile: float) -> ErrorStatistics:
    """Statistics of errors, which may be inf; all 0 for an empty tensor."""
    maximum = float(values.max(initial=0))
    if maximum == 0:
        return NO_ERROR
    median, at_quantile = quantiles(values, 0.5, quantile)
    with np.errstate(over="ignore"):
        mean = max(float(values.mean()), LEAST)
        return ErrorStatistics(maximum, mean, median, at_quantile)


def quantiles(values: Floats, *wanted: float) -> list[float]:
    """The quantiles (each 0 to 1) of values, interpolated as by NumPy, from one partition of the values.

    Between a finite and an infinite value, which cannot be interpolated, it is the greater one.
    """
    ranks = [quantile * (values.size - 1) for quantile in wanted]
    parted = np.partition(values, sorted({math.floor(rank) for rank in ranks} | {math.ceil(rank) for rank in ranks}))
    results = []
    for rank in ranks:
        low, high = float(parted[math.floor(rank)]), float(parted[math.ceil(rank)])
        part = rank - math.floor(rank)
        results.append(high if math.isinf(high) or low == high else low * (1 - part) + high * part)
    return results


def outside(errors: Errors, atol: float, rtol: float) -> Bools:
    """Which elements violate |actual - expected| <= atol + rtol * |expected|; one without an error never does."""
    with np.errstate(invalid="ignore", over="ignore"):
        limits = atol + rtol * errors.magnitude
    # An infinite error is outside even if the expected value, and so the limit, is infinite.
    beyond: Bools = (errors.absolute > limits) | np.isinf(errors.absolute)
    return beyond & (errors.absolute > 0)


def shares(errors: Errors, atol: float, rtol: float) -> Floats:
    """Each error as a multiple of the allowed one, |error| / (atol + rtol * |expected|).

    0 without an error, else inf if nothing is allowed or the error is infinite.
    """
    with np.errstate(all="ignore"):
        quotients: Floats = errors.absolute / (atol + rtol * errors.magnitude)
    quotients[~np.isfinite(quotients)] = np.inf
    quotients[errors.absolute == 0] = 0
    return quotients


def passing(errors: Errors, atol: float, rtol: float) -> tuple[float | None, float | None]:
    """The smallest atol that passes every element with the given ``rtol``, and the smallest rtol with ``atol``.

    Both are rounded up to three digits; None if there is none.
    """
    where = outside(errors, atol, rtol)
    absolute, magnitude = errors.absolute[where], errors.magnitude[where]
    if not absolute.size:
        return atol, rtol
    if not np.isfinite(absolute).all():
        return None, None
    by_rtol = None
    with np.errstate(over="ignore"):
        by_atol = rounded_up((absolute - rtol * magnitude).max(), lambda value: absolute > value + rtol * magnitude)
        if np.isfinite(magnitude).all() and (magnitude > 0).all():
            least = ((absolute - atol) / magnitude).max()
            by_rtol = rounded_up(least, lambda value: absolute > atol + value * magnitude)
    return by_atol, by_rtol


def rounded_up(value: Any, is_too_small: Callable[[float], Any] = lambda _: False) -> float | None:
    """The value rounded up to three digits, again while it ``is_too_small``; None if the result is not finite."""
    context = Context(prec=3, rounding=ROUND_CEILING)
    result = float(context.create_decimal(Decimal(float(value))))
    while np.any(is_too_small(result)):  # rounding inside a sum may still leave an element outside
        result = float(context.create_decimal(Decimal(math.nextafter(result, math.inf))))
    return result if math.isfinite(result) else None


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """An output with NaN or infinities: how many of each, and the index and value of the first one."""

    iteration: int
    name: str
    elements: int
    nan: int
    inf: int
    first: Index
    value: Scalar

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """One for each kind that there is, for the verdict file."""
        return tuple(
            Mismatch(output=self.name, kind=kind, elements=self.elements, wrong=times)
            for kind, times in self.counts.items()
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """How many elements are NaN or infinite, by kind, without kinds that there are not."""
        return {kind: times for kind, times in (("nan", self.nan), ("inf", self.inf)) if times}


def is_special(values: Array, special: Special) -> Bools:
    """Which elements of a numeric tensor are NaN, or infinite with this sign; an infinite complex number is +inf."""
    if values.dtype.kind not in "fc":
        return np.zeros(values.shape, np.bool_)
    if special == "nan":
        return np.isnan(values)
    sizes = np.abs(values) if values.dtype.kind == "c" else values
    return np.isposinf(sizes) if special == "+inf" else np.isneginf(sizes)


def not_finite(result: RunnerResult) -> Iterator[NotFinite]:
    """The outputs of a runner with NaN or infinities, in order."""
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
