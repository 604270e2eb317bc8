"""One pass over two tensors, block by block: enough to tell that one is within the tolerances of the other.

Most outputs of most runs are, and nobody asks more of them than how far off they are at most. What is computed for
every element then fits into a cache, whatever the size of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from biopsy.comparison import metrics
from biopsy.comparison.metrics import Element
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
    for start, left, right in _blocks(actual, expected):
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


def _blocks(actual: Array, expected: Array) -> Iterator[tuple[int, Array, Array]]:
    """Where each begins, and what both sides have there, flat."""
    left, right = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, left.size, BLOCK):
        yield start, left[start : start + BLOCK], right[start : start + BLOCK]


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
    if not (_is_ordinary(left) and _is_ordinary(right)):
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


def _is_ordinary(values: Array) -> bool:
    return values.dtype.kind == "f" and values.dtype.itemsize <= 8


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
