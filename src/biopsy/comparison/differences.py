"""How two tensors differ, in one pass block by block: whether one is within tolerances, a histogram, and a map of
the greatest errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.metrics import Element, Floats
from biopsy.comparison.tolerance import Tolerance
from biopsy.tensors.results import Array

BLOCK = 1 << 14
"""Elements that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class ErrorScan:
    """The errors of two tensors of one shape, as ``metrics.errors_between`` has them, none outside the tolerances.

    ``worst_absolute`` and ``worst_relative`` are None where no element differs. ``differing`` counts the elements that
    are not equal; ``greatest`` is the greatest finite |expected|, not looked for where the tensors are ``identical``:
    of one type, every element equal and no NaN.
    """

    identical: bool
    worst_absolute: Element | None
    worst_relative: Element | None
    differing: int
    greatest: float


def scan(actual: Array, expected: Array, tolerance: Tolerance) -> ErrorScan | None:
    """The errors between two numeric tensors of one shape; None if any element is outside the tolerances."""
    absolute, relative = _Greatest(), _Greatest()
    greatest: Any = 0.0
    differing = looked_at = 0
    same = []
    for start in range(0, actual.size, BLOCK):
        left, right = (side.reshape(-1)[start : start + BLOCK] for side in (actual, expected))
        if left.dtype == right.dtype and bool((left == right).all()):
            same.append(right)
            continue
        block = _seen_at_once(left, right, tolerance) or _seen_closely(left, right, tolerance)
        if block is None:
            return None
        absolute.see(block.absolute, start)
        relative.see(block.relative, start)
        greatest = max(greatest, block.greatest)
        differing += block.differing
        looked_at += 1
    identical = actual.dtype == expected.dtype and not looked_at
    if not identical:
        alike = (metrics.errors_between(one, one).magnitude for one in same)
        greatest = max([greatest, *map(metrics.greatest_finite, alike)])
    return ErrorScan(
        identical=identical,
        worst_absolute=absolute.element(actual, expected),
        worst_relative=relative.element(actual, expected),
        differing=differing,
        greatest=float(greatest),
    )


class _First(NamedTuple):
    """The greatest of some values, and where it is met first. In their type, which may be more precise than a float."""

    value: Any
    position: int

    @classmethod
    def of(cls, values: metrics.Floats) -> _First:
        position = int(values.argmax())
        return cls(values[position], position)


class _Seen(NamedTuple):
    """What was seen of a block, no element of which is outside the tolerances."""

    absolute: _First
    relative: _First
    greatest: Any
    differing: int


def _seen_closely(left: Array, right: Array, tolerance: Tolerance) -> _Seen | None:
    """What a block comes to; None if an element is outside."""
    errors = metrics.errors_between(left, right)
    if metrics.outside(errors, tolerance.atol, tolerance.rtol).any():
        return None
    return _Seen(
        _First.of(errors.absolute),
        _First.of(errors.relative),
        metrics.greatest_finite(errors.magnitude),
        int(np.count_nonzero(errors.absolute)),
    )


def _seen_at_once(left: Array, right: Array, tolerance: Tolerance) -> _Seen | None:
    """What ``_seen_closely`` gives for finite floats of ordinary size, in half the time; None for any others."""
    if not all(side.dtype.kind == "f" and side.dtype.itemsize <= 8 for side in (left, right)):
        return None
    with np.errstate(all="ignore"):
        errors, magnitude = left.astype(np.float64), right.astype(np.float64)
        errors -= magnitude
        np.abs(errors, out=errors)
        np.abs(magnitude, out=magnitude)
        absolute, greatest = _First.of(errors), magnitude.max()
        if not 0 < absolute.value < math.inf:  # NaN is neither, and argmax finds it
            return None
        if absolute.value > tolerance.atol and (errors > tolerance.atol + tolerance.rtol * magnitude).any():
            return None
        differing = int(np.count_nonzero(errors))
        zero = magnitude == 0
        if zero.any():
            if errors[zero].any():
                return None
            magnitude += zero  # nothing by nothing is no error
        errors /= magnitude
        relative = _First.of(errors)
    # Great enough that no quotient before it was rounded to 0, which would be an error all the same.
    is_sure = metrics.LEAST < relative.value < math.inf
    return _Seen(absolute, relative, greatest, differing) if is_sure else None


class _Greatest:
    """The first of the greatest values that were seen."""

    def __init__(self) -> None:
        self._value: Any = 0.0
        self._position = 0

    def see(self, found: _First, start: int) -> None:
        if found.value > self._value:
            self._value, self._position = found.value, start + found.position

    def element(self, actual: Array, expected: Array) -> Element | None:
        """The element that it belongs to; None if there was none above 0."""
        return metrics.element_of_both(actual, expected, self._position, float(self._value)) if self._value else None


# Where and how much two tensors differ, in a few thousand numbers: a histogram, and a map of the greatest errors.

_MOST_BLOCKS = 64
"""Along each side of the map."""

_BINS_PER_DECADE = 2
_MOST_BINS = 48
_MOST_WORST = 8
_AT_ONCE = 1 << 20
"""Elements of which logarithms are taken at once."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How many elements have which |actual - expected|: ``counts[i]`` from ``edges[i]`` up to ``edges[i + 1]``.

    The edges grow by a constant factor. ``zero`` counts equal elements, ``infinite`` those of which only one side is
    finite.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zero: int
    infinite: int


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The greatest |actual - expected| of each block of a tensor, row by row.

    ``axes`` are the two axes that rows and columns are laid out by, fewer of a tensor with fewer; what is along the
    others falls into the same block. ``shape`` is that of the tensor.
    """

    rows: tuple[tuple[float, ...], ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Differences:
    """A picture of the differences between two tensors; ``worst`` are the elements that differ most, greatest first."""

    histogram: Histogram
    heat: Heat
    worst: tuple[Element, ...]


def differences_between(actual: Array, expected: Array) -> Differences:
    """The picture of two numeric tensors of one shape, which have at least one element."""
    absolute = metrics.errors_between(actual, expected).absolute
    return Differences(
        histogram=histogram_of(absolute),
        heat=heat_of(absolute.reshape(actual.shape)),
        worst=_worst(actual, expected, absolute),
    )


def histogram_of(absolute: Floats) -> Histogram:
    """The histogram of errors, flat: zero or more, inf where nothing can be subtracted."""
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
    """The map of errors in the shape of their tensor, by its last two axes with more than one element."""
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


def _worst(actual: Array, expected: Array, absolute: Floats) -> tuple[Element, ...]:
    left = absolute.copy()
    found = []
    for _ in range(_MOST_WORST):
        one = metrics.worst(actual, expected, left)
        if one is None:
            break
        found.append(one)
        left[int(np.argmax(left))] = 0
    return tuple(found)
