"""Where and how much two tensors differ, in a few thousand numbers: a histogram, and a map of the greatest errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.metrics import Element, Floats
from biopsy.tensors.results import Array

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
        grid = np.maximum.reduceat(grid, _starts(grid.shape[axis]), axis=axis)
    rows = tuple(tuple(map(float, row)) for row in grid)
    return Heat(rows=rows, axes=axes, shape=absolute.shape)


def _starts(size: int) -> Sequence[int]:
    """Where the blocks of an axis begin."""
    blocks = min(size, _MOST_BLOCKS)
    return [block * size // blocks for block in range(blocks)]


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
