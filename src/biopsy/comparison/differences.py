"""Measures how two tensors of one shape differ: metrics (L2, cosine, PSNR, SNR, ULP, ranks), a summary computed block
by block, a histogram, and a map of the greatest errors.

An element that is the same NaN or infinity on both sides has no error. It is left out of sums, as are elements that
are finite on one side only, which ``errors_between`` counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.metrics import (
    Element,
    Errors,
    ErrorStatistics,
    Floats,
    Index,
    at,
    differing,
    errors_between,
    numeric,
)
from biopsy.comparison.tolerance import Tolerance, TopK
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_float, number_info

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """The errors between two tensors of one shape; the defaults are those of equal ones.

    ``mismatching`` counts elements outside the tolerances, whichever statistic decides; ``broken`` counts those of
    them that are finite on one side only, or infinities of different signs. ``passing_atol`` is the smallest atol that
    would pass with the given rtol, ``passing_rtol`` the other way round, both rounded up; None if none would.
    ``worst_absolute`` and ``worst_relative`` are None if no element differs. ``offending`` is the element farthest
    outside the tolerances, with its error as a multiple of the allowed one; None if none is outside. ``differing``
    counts elements that are not equal; ``greatest`` is the greatest finite |expected|, if elements differ.
    """

    elements: int
    mismatching: int = 0
    broken: int = 0
    absolute: ErrorStatistics = metrics.NO_ERROR
    relative: ErrorStatistics = metrics.NO_ERROR
    worst_absolute: Element | None = None
    worst_relative: Element | None = None
    passing_atol: float | None
    passing_rtol: float | None
    offending: Element | None = None
    differing: int = 0
    greatest: float = 0.0

    @property
    def fraction(self) -> float:
        """The share of elements outside the tolerances, 0 to 1."""
        return self.mismatching / self.elements if self.elements else 0.0


BLOCK = 1 << 14
"""Elements that are compared at a time."""


def summary_within(actual: Array, expected: Array, tolerance: Tolerance) -> ErrorSummary | None:
    """The errors between two numeric tensors of one shape; None if any element is outside the tolerances.

    Of the statistics, only the maximum is computed; ``greatest`` is not computed for identical tensors (of one type,
    with equal elements and no NaN).
    """
    tops: list[tuple[Any, int]] = [(0.0, 0), (0.0, 0)]  # the errors' type may be more precise than float
    greatest: Any = 0.0
    count = 0
    equal_blocks = []
    for start in range(0, actual.size, BLOCK):
        left, right = (side.reshape(-1)[start : start + BLOCK] for side in (actual, expected))
        if left.dtype == right.dtype and bool((left == right).all()):
            equal_blocks.append(right)
            continue
        errors = _ordinary_errors(left, right) or errors_between(left, right)
        if errors.broken or (
            errors.absolute.max() > tolerance.atol and metrics.outside(errors, tolerance.atol, tolerance.rtol).any()
        ):
            return None
        for number, values in enumerate((errors.absolute, errors.relative)):
            place = int(values.argmax())
            if values[place] > tops[number][0]:
                tops[number] = values[place], start + place
        greatest = max(greatest, metrics.greatest_finite(errors.magnitude))
        count += int(np.count_nonzero(errors.absolute))
    if len(equal_blocks) * BLOCK < actual.size or actual.dtype != expected.dtype:
        magnitudes = (errors_between(block, block).magnitude for block in equal_blocks)
        greatest = max([greatest, *map(metrics.greatest_finite, magnitudes)])
    absolute, relative = (
        metrics.element_of_both(actual, expected, place, float(value)) if value else None for value, place in tops
    )
    return ErrorSummary(
        elements=actual.size,
        absolute=_only_maximum(absolute),
        relative=_only_maximum(relative),
        worst_absolute=absolute,
        worst_relative=relative,
        passing_atol=tolerance.atol,
        passing_rtol=tolerance.rtol,
        differing=count,
        greatest=float(greatest),
    )


def _only_maximum(worst: Element | None) -> ErrorStatistics:
    return metrics.NO_ERROR if worst is None else ErrorStatistics(worst.error, math.nan, math.nan, math.nan)


def _ordinary_errors(left: Array, right: Array) -> Errors | None:
    """``errors_between`` for finite floats of ordinary size, in half the time; None for any others."""
    if not all(side.dtype.kind == "f" and side.dtype.itemsize <= 8 for side in (left, right)):
        return None
    with np.errstate(all="ignore"):
        absolute, magnitude = left.astype(np.float64), right.astype(np.float64)
        absolute -= magnitude
        np.abs(absolute, out=absolute)
        np.abs(magnitude, out=magnitude)
        zero = magnitude == 0
        if zero.any() and absolute[zero].any():
            return None
        relative = absolute / (magnitude + zero)  # 0 / 0 is not an error
        # Above LEAST, so that no error was rounded to 0 by the division. NaN fails the test, too.
        is_ordinary = 0 < absolute.max() < math.inf and metrics.LEAST < relative.max() < math.inf
    return Errors(absolute, relative, magnitude, 0) if is_ordinary else None


def finite_pairs(actual: Array, expected: Array) -> tuple[Floats, Floats]:
    """Both tensors flat, in float64 (complex numbers as pairs), without elements that are not finite on both sides."""
    flat = _parts if "c" in (actual.dtype.kind, expected.dtype.kind) else numeric
    left, right = (flat(side).reshape(-1).astype(np.float64, copy=False) for side in (actual, expected))
    both = np.isfinite(left) & np.isfinite(right)
    return (left, right) if both.all() else (left[both], right[both])


def finite_errors(actual: Array, expected: Array) -> Floats:
    """The absolute errors of the elements that are finite on both sides, flat; above 0 if the values differ."""
    between = errors_between(actual, expected).absolute
    left, right = (np.isfinite(numeric(side)).reshape(-1) for side in (actual, expected))
    both = left & right
    return between if both.all() else between[both]


def l2(actual: Array, expected: Array) -> float:
    """The Euclidean distance, sqrt(sum((actual - expected)**2))."""
    return _norm(finite_errors(actual, expected))


def cosine(actual: Array, expected: Array) -> float:
    """The cosine of the angle between both tensors as vectors, -1 to 1; 1 if both are all zero, 0 if only one is.

    It is 1 for multiples of each other, so it never shows that tensors are equal.
    """
    left, right = finite_pairs(actual, expected)
    lengths = _norm(left), _norm(right)
    if 0 in lengths:
        return 1.0 if lengths == (0, 0) else 0.0
    product = float(np.dot(left / lengths[0], right / lengths[1]))
    return max(-1.0, min(1.0, product))


def snr(actual: Array, expected: Array) -> float:
    """Signal-to-noise ratio in dB: 10 log10(mean(expected**2) / mean((actual - expected)**2)).

    inf if nothing differs, else -inf if all expected values are zero.
    """
    _, right = finite_pairs(actual, expected)
    return _decibel(_log_norm(right), _log_norm(finite_errors(actual, expected)))


def psnr(actual: Array, expected: Array) -> float:
    """Peak signal-to-noise ratio in dB: 20 log10(max(expected)) - 10 log10(mean((actual - expected)**2)).

    The peak is 1 if no expected value is above 0, as in Polygraphy. inf if nothing differs.
    """
    _, right = finite_pairs(actual, expected)
    if right.size == 0:
        return math.inf
    peak = float(right.max())
    signal = math.log10(peak if peak > 0 else 1.0) + math.log10(right.size) / 2
    return _decibel(signal, _log_norm(finite_errors(actual, expected)))


FIGURES: Mapping[str, Callable[[Array, Array], float]] = {
    "l2": l2, "cosine": cosine, "psnr": psnr, "snr": snr,
    "ulp": lambda actual, expected: float(ulps(actual, expected).max(initial=0)),
}  # fmt: skip
"""Metric -> the function that computes it from two numeric tensors of one shape."""


def _scaled_norm(values: Floats) -> tuple[float, float]:
    """The greatest magnitude, and the Euclidean norm divided by it, so that squares neither overflow nor vanish."""
    largest = float(np.abs(values).max(initial=0))
    if largest == 0 or math.isinf(largest):
        return largest, 1.0
    return largest, float(np.linalg.norm(values / largest))


def _norm(values: Floats) -> float:
    return math.prod(_scaled_norm(values))


def _log_norm(values: Floats) -> float:
    """log10 of the Euclidean norm, which itself may overflow float64; -inf if it is 0."""
    largest, times = _scaled_norm(values)
    return math.log10(largest) + math.log10(times) if largest else -math.inf


def _decibel(signal: float, noise: float) -> float:
    """A ratio in dB, from log10 of both norms."""
    return math.inf if noise == -math.inf else 20 * (signal - noise)


def ulps(actual: Array, expected: Array) -> Floats:
    """The distance of each pair of elements in units in the last place, flat, as float64; of integers, the difference.

    It counts in the less precise of the two types, to which the other side is rounded first: floats of one sign are
    ordered like their bits (IEEE 754). 0 for two equal NaN or infinities, inf if only one side is NaN. Values that
    differ have a distance above 0, unless rounding to the less precise type makes them equal.
    """
    if "c" in (actual.dtype.kind, expected.dtype.kind):
        worse: Floats = ulps(_parts(actual), _parts(expected)).reshape(-1, 2).max(axis=1)
        return worse
    if not (is_float(actual.dtype) and is_float(expected.dtype)):
        return errors_between(actual, expected).absolute
    dtype = min((actual.dtype, expected.dtype), key=lambda dtype: int(number_info(dtype).nmant))
    with np.errstate(over="ignore"):
        left, right = (side.astype(dtype, copy=False).reshape(-1) for side in (actual, expected))
    (left_ordinals, left_negative), (right_ordinals, right_negative) = _ordinals(left), _ordinals(right)
    difference = np.maximum(left_ordinals, right_ordinals) - np.minimum(left_ordinals, right_ordinals)
    is_same_sign = left_negative == right_negative
    distance = np.where(is_same_sign, difference, left_ordinals + right_ordinals).astype(np.float64)
    nan = [np.isnan(numeric(side)) for side in (left, right)]
    distance[nan[0] | nan[1]] = math.inf
    distance[nan[0] & nan[1]] = 0
    if actual.dtype == expected.dtype and dtype.itemsize > 8:  # ``_ordinals`` has rounded it to float64
        distance = np.maximum(distance, differing(left, right))
    return distance


def _parts(array: Array) -> Floats:
    """Real and imaginary parts, alternating, in their own precision."""
    if array.dtype.kind == "c":
        return np.ascontiguousarray(array).reshape(-1).view(array.real.dtype)
    values = numeric(array).reshape(-1)
    return np.stack([values, np.zeros_like(values)], axis=-1).reshape(-1)


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """The greatest relative error of rounding to a floating-point type (2**-24 for float32); 0 for other types."""
    kind = np.dtype(dtype.type(0).real.dtype) if dtype.kind == "c" else dtype
    return 0.5 ** (int(number_info(kind).nmant) + 1) if is_float(kind) else 0.0


def _ordinals(values: Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """How many numbers of the type lie between 0 and each element, and which are negative; float64 at most."""
    if values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    width = int(number_info(values.dtype).bits)
    bits = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    if "e8m0" in values.dtype.name:  # has no sign
        return bits, np.zeros(bits.shape, bool)
    return bits & np.uint64((1 << (width - 1)) - 1), (bits >> np.uint64(width - 1) & np.uint64(1)).astype(bool)


@dataclass(frozen=True)
class RankMismatches:
    """``count`` of ``ranks`` indices are out of place, the ``first`` one there in a ranking of that ``shape``."""

    count: int
    ranks: int
    first: Index | None
    shape: tuple[int, ...]


def top_k(array: Array, wanted: TopK) -> npt.NDArray[np.int64]:
    """The indices of the greatest elements along an axis, greatest first; the axis is moved to the end.

    Equal elements are in the order of their indices. Raises ValueError if there is no such axis.
    """
    values = numeric(array)
    if values.dtype.kind == "c":
        values = np.abs(values)
    values = np.moveaxis(np.atleast_1d(values), wanted.axis, -1)
    # Reversed before and after, so that the stable sort keeps equal elements in their order.
    order = np.argsort(values[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    indices: npt.NDArray[np.int64] = (values.shape[-1] - 1 - order)[..., : wanted.k].astype(np.int64)
    return indices


def rank_mismatches(actual: Array, expected: Array, tolerance: int) -> RankMismatches:
    """The indices of ``actual`` that ``expected`` does not have within ``tolerance`` places along the last axis.

    The last ``tolerance`` places of each row are not compared, since their indices may have moved out of it. This is
    Polygraphy's comparison of indices.
    """
    left, right = np.atleast_1d(numeric(actual)), np.atleast_1d(numeric(expected))
    compared = max(left.shape[-1] - tolerance, 0)
    fits = np.zeros((*left.shape[:-1], compared), bool)
    for shift in range(-tolerance, tolerance + 1):
        start, stop = max(0, -shift), min(compared, right.shape[-1] - shift)
        if start < stop:
            fits[..., start:stop] |= ~differing(left[..., start:stop], right[..., start + shift : stop + shift])
    count = int((~fits).sum())
    first = at(fits, int((~fits).reshape(-1).argmax())) if count else None
    return RankMismatches(count, fits.size, first, left.shape)


_MOST_BLOCKS = 64
"""Blocks along each side of a heat map."""

_BINS_PER_DECADE = 2
_MOST_BINS = 48
_MOST_WORST = 8
_AT_ONCE = 1 << 20
"""Elements whose logarithms are computed at a time."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How many elements have which |actual - expected|: ``counts[i]`` are from ``edges[i]`` up to ``edges[i + 1]``.

    The edges grow by a constant factor. ``zero`` counts equal elements, ``infinite`` those that are finite on one side
    only.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zero: int
    infinite: int


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A heat map: the greatest |actual - expected| in each block of a tensor, row by row.

    ``axes`` are the axes of its rows and columns, at most two; elements along other axes are in the same block.
    ``shape`` is that of the tensor.
    """

    rows: tuple[tuple[float, ...], ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Differences:
    """A picture of the differences between two tensors; ``worst`` are the greatest errors, in descending order."""

    histogram: Histogram
    heat: Heat
    worst: tuple[Element, ...]


def differences_between(actual: Array, expected: Array) -> Differences:
    """The picture of two numeric tensors of one shape with at least one element."""
    absolute = metrics.errors_between(actual, expected).absolute
    remaining, worst = absolute.copy(), list[Element]()
    while len(worst) < _MOST_WORST and (element := metrics.worst(actual, expected, remaining)) is not None:
        worst.append(element)
        remaining[int(np.argmax(remaining))] = 0
    heat = heat_of(absolute.reshape(actual.shape))
    return Differences(histogram=histogram_of(absolute), heat=heat, worst=tuple(worst))


def histogram_of(absolute: Floats) -> Histogram:
    """The histogram of absolute errors, flat, which may be inf."""
    is_counted = (absolute > 0) & np.isfinite(absolute)
    zero, infinite = int((absolute == 0).sum()), int(np.isinf(absolute).sum())
    if not is_counted.any():
        return Histogram(edges=(), counts=(), zero=zero, infinite=infinite)
    least = float(absolute.min(where=is_counted, initial=math.inf))
    greatest = float(absolute.max(where=is_counted, initial=0))
    first, last = math.floor(math.log10(least)), math.floor(math.log10(greatest)) + 1
    bins = min(_MOST_BINS, (last - first) * _BINS_PER_DECADE)
    counts = np.zeros(bins, np.int64)
    for start in range(0, absolute.size, _AT_ONCE):
        part = absolute[start : start + _AT_ONCE][is_counted[start : start + _AT_ONCE]]
        places = (np.log10(part) - first) / (last - first) * bins
        counts += np.bincount(np.clip(places.astype(np.int64), 0, bins - 1), minlength=bins)
    exponents = np.linspace(first, last, bins + 1)
    edges = tuple(float(f"{10.0 ** min(exponent, 308):.6g}") for exponent in exponents.tolist())
    return Histogram(edges=edges, counts=tuple(counts.tolist()), zero=zero, infinite=infinite)


def heat_of(absolute: Floats) -> Heat:
    """The heat map of errors in the shape of their tensor, along its last two axes with more than one element."""
    long = [axis for axis, size in enumerate(absolute.shape) if size > 1]
    axes = tuple(long[-2:])
    others = tuple(axis for axis in range(absolute.ndim) if axis not in axes)
    flat = absolute.max(axis=others) if others else absolute
    grid = flat.reshape((1,) * (2 - flat.ndim) + flat.shape)
    for axis in (0, 1):
        size = grid.shape[axis]
        blocks = min(size, _MOST_BLOCKS)
        grid = np.maximum.reduceat(grid, [block * size // blocks for block in range(blocks)], axis=axis)
    rows = tuple(tuple(map(float, row)) for row in grid)
    return Heat(rows=rows, axes=axes, shape=absolute.shape)
