"""Errors of small values beside large ones: parts of a tensor, each judged by what rounding does to values of its size.

The greatest error of a whole tensor is where its values are great, and a row of small values may be wrong below it. So
slices along every axis are looked at, rows of every depth, and classes of magnitude. A part is wrong if most of its
elements are: one alone may be the rest of what was subtracted, with the rounding of something great. And what rounding
does is taken from the part where it does the most, for plain float32 may be exact in one part by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from biopsy.comparison.metrics import Bools, Floats

LEAST = 8
"""Elements that are not 0 which a part must have."""

MOST = 0.75
"""Share of these that must be wrong."""

WIDER = 3.0
"""How many times more than in a whole tensor may be rounding in a slice: there are many, and one may be lucky."""

WIDER_BY_SIZE = 1000.0
"""The same for a class of magnitude: functions are approximated to an absolute error, which their tails show."""

_CLASS_BITS = 10
"""Powers of two in one class of magnitude."""


@dataclass(frozen=True)
class WrongPart:
    """A part of a tensor that is wrong: where it is, in words, and how many times its noise its error is."""

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


@dataclass(frozen=True)
class NoiseFloor:
    """What is rounding: so many times (``limit``) the error of plain float32.

    That is taken as one rounding at least (``roundoff``, relative to a value), and as ``least``, below which an engine
    may take everything as 0.
    """

    limit: float
    roundoff: float
    least: float


def wrong_part(errors: PartErrors, floor: NoiseFloor) -> WrongPart | None:
    """The slice that is wrong by the most, else the class of magnitude; None if there is none."""
    if not errors.ours.any():
        return None
    for parts in (_slices, _classes):
        worst = max(parts(errors, floor), key=lambda part: part.ratio, default=None)
        if worst is not None:
            return worst
    return None


def _slices(errors: PartErrors, floor: NoiseFloor) -> Iterator[WrongPart]:
    """The worst slice of each axis, and the worst row of each depth."""
    shape = errors.ours.shape
    for axis in range(len(shape)):
        others = tuple(other for other in range(len(shape)) if other != axis)
        yield from _worst_of(errors, others, floor)
    for depth in range(2, len(shape)):
        yield from _worst_of(errors, tuple(range(depth, len(shape))), floor)


def _worst_of(errors: PartErrors, within: tuple[int, ...], floor: NoiseFloor) -> Iterator[WrongPart]:
    """The worst of the slices that hold what the axes ``within`` count."""
    shape = errors.ours.shape
    if math.prod(shape[axis] for axis in within) < LEAST:
        return
    noise = _relative(errors, within).max(initial=floor.roundoff)
    ratios = _ratios(errors, within, float(noise), WIDER, floor)
    place = np.unravel_index(int(ratios.argmax()), ratios.shape)
    if ratios[place] > 0:
        written = [":" if axis in within else str(int(place[axis])) for axis in range(len(shape))]
        yield WrongPart(f"in the slice [{', '.join(written)}]", float(ratios[place]))


def _classes(errors: PartErrors, floor: NoiseFloor) -> Iterator[WrongPart]:
    """Elements by the magnitude of the exact value, greatest first; nothing is to be seen where there is one class."""
    sizes = errors.sizes.reshape(-1)
    exponents = np.frexp(sizes)[1] // _CLASS_BITS
    numbers = np.unique(exponents[sizes > 0])[::-1]
    noise = floor.roundoff
    for number in numbers if len(numbers) > 1 else ():
        among = np.flatnonzero((exponents == number) & (sizes > 0))
        part = PartErrors(errors.ours.reshape(-1)[among], errors.theirs.reshape(-1)[among], sizes[among])
        noise = max(noise, float(_relative(part, (0,))[0]))
        ratio = float(_ratios(part, (0,), noise, WIDER_BY_SIZE, floor)[0])
        if ratio > 0:
            low, high = part.sizes.min(), part.sizes.max()
            yield WrongPart(f"among the {len(among)} values of {low:.2g} to {high:.2g}", ratio)


def _relative(errors: PartErrors, within: tuple[int, ...]) -> Floats:
    """What rounding does in each slice, relative to its values."""
    theirs, sizes = (_rms(side, within) for side in (errors.theirs, errors.sizes))
    with np.errstate(over="ignore"):
        found: Floats = np.divide(theirs, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    return found


def _ratios(errors: PartErrors, within: tuple[int, ...], noise: float, wider: float, floor: NoiseFloor) -> Floats:
    """How many times its noise each slice errs, where most of its elements are wrong; else 0."""
    with np.errstate(over="ignore"):
        rounded = np.maximum(np.maximum(noise * errors.sizes, errors.theirs), floor.least)
        wrong: Bools = errors.ours > wider * floor.limit * rounded
    counted = np.count_nonzero(errors.sizes, axis=within, keepdims=True)
    most = np.count_nonzero(wrong, axis=within, keepdims=True) >= np.maximum(MOST * counted, LEAST * MOST)
    with np.errstate(over="ignore"):
        found = _rms(errors.ours, within) / _rms(rounded, within)
    return np.where(most & (counted >= LEAST), found, 0)


def _rms(values: Floats, within: tuple[int, ...]) -> Floats:
    """Root mean squares of slices, scaled by their greatest values so that no square overflows or vanishes."""
    highest = values.max(axis=within, keepdims=True)
    scale = np.where(highest > 0, highest, 1)
    found: Floats = scale * np.sqrt(np.square(values / scale).mean(axis=within, keepdims=True))
    return found
