"""Errors of small values beside large ones: parts of a tensor, each judged by the errors of plain float32 in that part.

The greatest error of a whole tensor is where its values are great, and a row of small values may be wrong below it. So
slices along every axis are looked at, rows of every depth, and classes of magnitude. A part must have several elements
of about the same size: plain float32 may be exact in a few by luck, and then anything would be many times its error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from biopsy.comparison.metrics import Floats

LEAST = 8
"""Elements of about the same size that a part must have. That 8 errors are all less than a tenth of the usual one by luck
happens once in 10**8 parts."""

_CLASS_BITS = 10
"""Powers of two in one class of magnitude."""


@dataclass(frozen=True)
class Part:
    """A part of a tensor: where it is, in words, and how many times the error of plain float32 its error is."""

    where: str
    ratio: float


@dataclass(frozen=True)
class PartErrors:
    """Errors of a suspect and of plain float32 in one tensor, and the exact magnitudes: of the tensor's shape, finite.

    What is not to be judged is 0 in all three.
    """

    ours: Floats
    theirs: Floats
    sizes: Floats


def worst_part(errors: PartErrors, roundoff: float, least: float) -> Part | None:
    """The part whose error is the most times that of plain float32; None if there is no part with an error.

    Plain float32 is taken to err by one rounding at least (``roundoff``, relative to the part's greatest value), and by
    ``least``, below which an engine may take everything as 0.
    """
    scale = float(max(errors.ours.max(initial=0), errors.theirs.max(initial=0)))
    if scale == 0:
        return None
    found = [*_slices(errors, roundoff, least), *_classes(errors, roundoff, least)]
    return max(found, key=lambda part: part.ratio, default=None)


def _slices(errors: PartErrors, roundoff: float, least: float) -> Iterator[Part]:
    """The worst slice of each axis, and the worst row of each depth."""
    shape = errors.ours.shape
    for axis in range(len(shape)):
        others = tuple(other for other in range(len(shape)) if other != axis)
        yield from _worst_of(errors, others, roundoff, least)
    for depth in range(2, len(shape)):
        yield from _worst_of(errors, tuple(range(depth, len(shape))), roundoff, least)


def _worst_of(errors: PartErrors, within: tuple[int, ...], roundoff: float, least: float) -> Iterator[Part]:
    """The worst of the slices that hold what the axes ``within`` count."""
    shape = errors.ours.shape
    if math.prod(shape[axis] for axis in within) < LEAST:
        return
    ratios = _ratios(errors, within, roundoff, least)
    place = np.unravel_index(int(ratios.argmax()), ratios.shape)
    if ratios[place] > 0:
        written = [":" if axis in within else str(int(place[axis])) for axis in range(len(shape))]
        yield Part(f"in the slice [{', '.join(written)}]", float(ratios[place]))


def _ratios(errors: PartErrors, within: tuple[int, ...], roundoff: float, least: float) -> Floats:
    """Of each slice the greater of two: greatest error to greatest error, root mean square to root mean square."""
    ours, theirs, sizes = errors.ours, errors.theirs, errors.sizes
    highest = [side.max(axis=within, keepdims=True) for side in (ours, theirs, sizes)]
    usual = [_rms(side, top, within) for side, top in zip((ours, theirs, sizes), highest, strict=True)]
    found = np.zeros(highest[0].shape)
    for one, other, size in (highest, usual):
        with np.errstate(over="ignore"):
            found = np.maximum(found, one / np.maximum(np.maximum(other, roundoff * size), least))
    return np.where(_alike(sizes, highest[2], within) >= LEAST, found, 0)


def _alike(sizes: Floats, highest: Floats, within: tuple[int, ...]) -> Floats:
    """How many elements of about the same size a slice has: the participation ratio, sum(x)**2 / sum(x**2)."""
    scaled = sizes / np.where(highest > 0, highest, 1)
    squares = np.square(scaled).sum(axis=within, keepdims=True)
    found: Floats = np.square(scaled.sum(axis=within, keepdims=True)) / np.maximum(squares, 1e-300)
    return found


def _rms(values: Floats, highest: Floats, within: tuple[int, ...]) -> Floats:
    """Root mean squares of slices, scaled by their greatest values so that no square overflows or vanishes."""
    scale = np.where(highest > 0, highest, 1)
    found: Floats = scale * np.sqrt(np.square(values / scale).mean(axis=within, keepdims=True))
    return found


def _classes(errors: PartErrors, roundoff: float, least: float) -> Iterator[Part]:
    """Elements by the magnitude of the exact value; there is nothing to see where all are of one class."""
    sizes = errors.sizes.reshape(-1)
    exponents = np.frexp(sizes)[1] // _CLASS_BITS
    found = np.unique(exponents[sizes > 0])
    for number in found if len(found) > 1 else ():
        among = np.flatnonzero((exponents == number) & (sizes > 0))
        part = PartErrors(errors.ours.reshape(-1)[among], errors.theirs.reshape(-1)[among], sizes[among])
        ratio = float(_ratios(part, (0,), roundoff, least)[0])
        if ratio > 0:
            low, high = part.sizes.min(), part.sizes.max()
            yield Part(f"among the {len(among)} values of {low:.2g} to {high:.2g}", ratio)
