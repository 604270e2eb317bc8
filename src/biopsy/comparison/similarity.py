"""Single figures for how alike two tensors of one shape are: L2, cosine, PSNR, SNR, ULP, ranks. They decide nothing.

Where both sides hold the same NaN or infinity there is no error, and the element is left out of sums; elements that
only one side has finite are for ``errors_between`` to count, and left out here too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from biopsy.comparison.metrics import Floats, Index, at, differing, errors_between, numeric
from biopsy.comparison.tolerance import TopK
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_float, number_info


def finite_pairs(actual: Array, expected: Array) -> tuple[Floats, Floats]:
    """Both tensors flat, in float64 (complex ones as pairs), without elements that are not finite on both sides."""
    flat = _parts if "c" in (actual.dtype.kind, expected.dtype.kind) else numeric
    left, right = (flat(side).reshape(-1).astype(np.float64, copy=False) for side in (actual, expected))
    both = np.isfinite(left) & np.isfinite(right)
    return (left, right) if both.all() else (left[both], right[both])


def finite_errors(actual: Array, expected: Array) -> Floats:
    """The absolute errors, flat, of the elements that are finite on both sides; above 0 wherever the values differ."""
    between = errors_between(actual, expected).absolute
    left, right = (np.isfinite(numeric(side)).reshape(-1) for side in (actual, expected))
    both = left & right
    return between if both.all() else between[both]


def l2(actual: Array, expected: Array) -> float:
    """The Euclidean distance, sqrt(sum((actual - expected)**2))."""
    return _norm(finite_errors(actual, expected))


def cosine(actual: Array, expected: Array) -> float:
    """The cosine of the angle between both as vectors, -1 to 1. 1 if both are zero everywhere, 0 if only one is.

    Vectors of other lengths may have no angle between them: the cosine alone never tells that tensors are equal.
    """
    left, right = finite_pairs(actual, expected)
    lengths = _norm(left), _norm(right)
    if 0 in lengths:
        return 1.0 if lengths == (0, 0) else 0.0
    found = float(np.dot(left / lengths[0], right / lengths[1]))
    return max(-1.0, min(1.0, found))


def snr(actual: Array, expected: Array) -> float:
    """Signal-to-noise ratio in dB: 10 log10(mean(expected**2) / mean((actual - expected)**2)).

    inf where nothing differs, -inf where only the expected values are all zero.
    """
    _, right = finite_pairs(actual, expected)
    return _decibel(_log_norm(right), _log_norm(finite_errors(actual, expected)))


def psnr(actual: Array, expected: Array) -> float:
    """Peak signal-to-noise ratio in dB: 20 log10(max(expected)) - 10 log10(mean((actual - expected)**2)).

    The peak is 1 where no expected value is above 0, as in Polygraphy. inf where nothing differs.
    """
    _, right = finite_pairs(actual, expected)
    if right.size == 0:
        return math.inf
    peak = float(right.max())
    signal = math.log10(peak if peak > 0 else 1.0) + math.log10(right.size) / 2
    return _decibel(signal, _log_norm(finite_errors(actual, expected)))


def _norm(values: Floats) -> float:
    """The Euclidean norm, scaled by the greatest value so that no square overflows or vanishes."""
    largest = float(np.abs(values).max(initial=0))
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * float(np.linalg.norm(values / largest))


def _log_norm(values: Floats) -> float:
    """The common logarithm of the Euclidean norm, which may be greater than a float64 holds; -inf of nothing."""
    largest = float(np.abs(values).max(initial=0))
    if largest == 0 or math.isinf(largest):
        return -math.inf if largest == 0 else math.inf
    return math.log10(largest) + math.log10(float(np.linalg.norm(values / largest)))


def _decibel(signal: float, noise: float) -> float:
    """From the logarithms of both."""
    return math.inf if noise == -math.inf else 20 * (signal - noise)


# Units in the last place


def ulps(actual: Array, expected: Array) -> Floats:
    """How many numbers of their type lie between the elements, flat, as float64; whole numbers differ by what they do.

    The type is the less precise one of the two: the other side is rounded to it first. 0 for two equal NaN or
    infinities, inf where only one side is NaN. Ordinals: floats of one sign are ordered as their bits are (IEEE 754).
    Values that differ are apart by more than 0, unless it is rounding to the less precise type that makes them equal.
    """
    if "c" in (actual.dtype.kind, expected.dtype.kind):
        worse: Floats = ulps(_parts(actual), _parts(expected)).reshape(-1, 2).max(axis=1)
        return worse
    if not (is_float(actual.dtype) and is_float(expected.dtype)):
        return errors_between(actual, expected).absolute
    dtype = min((actual.dtype, expected.dtype), key=lambda dtype: int(number_info(dtype).nmant))
    with np.errstate(over="ignore"):
        left, right = (side.astype(dtype, copy=False).reshape(-1) for side in (actual, expected))
    (sizes, below), (others, others_below) = _ordinals(left), _ordinals(right)
    apart = np.where(sizes > others, sizes - others, others - sizes)
    distance = np.where(below == others_below, apart, sizes + others).astype(np.float64)
    nan = [np.isnan(numeric(side)) for side in (left, right)]
    distance[nan[0] | nan[1]] = math.inf
    distance[nan[0] & nan[1]] = 0
    if actual.dtype == expected.dtype and dtype.itemsize > 8:  # what has been rounded to be counted
        distance = np.maximum(distance, differing(left, right))
    return distance


def _parts(array: Array) -> Floats:
    """Real and imaginary parts in turn, of the precision that the numbers have."""
    if array.dtype.kind == "c":
        return np.ascontiguousarray(array).reshape(-1).view(array.real.dtype)
    values = numeric(array).reshape(-1)
    return np.stack([values, np.zeros_like(values)], axis=-1).reshape(-1)


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """The greatest relative error of rounding to a floating type, such as 2**-24 for float32; 0 for other types."""
    kind = np.dtype(dtype.type(0).real.dtype) if dtype.kind == "c" else dtype
    return 0.5 ** (int(number_info(kind).nmant) + 1) if is_float(kind) else 0.0


def _ordinals(values: Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The number of each element counted from 0, and whether it is below. What is wider than 8 bytes, as float64."""
    if values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    width = int(number_info(values.dtype).bits)
    bits = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    if "e8m0" in values.dtype.name:  # has no sign
        return bits, np.zeros(bits.shape, bool)
    return bits & np.uint64((1 << (width - 1)) - 1), (bits >> np.uint64(width - 1) & np.uint64(1)).astype(bool)


# Ranks


@dataclass(frozen=True)
class RankMismatches:
    """How many ranked indices are out of place, of how many, and where the first is in the ranking of that shape."""

    count: int
    ranks: int
    first: Index | None
    shape: tuple[int, ...]


def top_k(array: Array, wanted: TopK) -> npt.NDArray[np.int64]:
    """The indices of the greatest elements along an axis, greatest first; the axis is moved to the end.

    Of equal elements the one with the lower index comes first. Raises ValueError if there is no such axis.
    """
    values = numeric(array)
    if values.dtype.kind == "c":
        values = np.abs(values)
    values = np.moveaxis(np.atleast_1d(values), wanted.axis, -1)
    # Sorted from the end, so that a stable sort keeps the first of equals first.
    order = np.argsort(values[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    found: npt.NDArray[np.int64] = (values.shape[-1] - 1 - order)[..., : wanted.k].astype(np.int64)
    return found


def rank_mismatches(actual: Array, expected: Array, tolerance: int) -> RankMismatches:
    """Indices of ``actual`` that ``expected`` has more than ``tolerance`` places off in the last axis, or not at all.

    The last ``tolerance`` places of each row are not looked at: their indices may just have moved out of it. That is
    Polygraphy's comparison of indices.
    """
    left, right = np.atleast_1d(numeric(actual)), np.atleast_1d(numeric(expected))
    looked = max(left.shape[-1] - tolerance, 0)
    fits = np.zeros((*left.shape[:-1], looked), bool)
    for shift in range(-tolerance, tolerance + 1):
        start, stop = max(0, -shift), min(looked, right.shape[-1] - shift)
        if start < stop:
            fits[..., start:stop] |= ~differing(left[..., start:stop], right[..., start + shift : stop + shift])
    count = int((~fits).sum())
    first = at(fits, int((~fits).reshape(-1).argmax())) if count else None
    return RankMismatches(count, fits.size, first, left.shape)
