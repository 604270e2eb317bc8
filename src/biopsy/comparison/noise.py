"""Decides whether an engine's error is a bug or only rounding, by the error of plain float32 on the same model, and
whether it is that of computing in a narrower type, by a simulation of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.comparison import differences, metrics
from biopsy.comparison.metrics import Element, Floats, errors_between, worst
from biopsy.tensors.results import Array, Iteration, RunnerResult, release
from biopsy.tensors.types import is_text

Verdict: TypeAlias = Literal["rounding", "bug", "unknown"]
"""``unknown``: there are no values to compare with."""

DEFAULT_RATIO = 10.0
"""An error up to this many times plain float32's is rounding (measured: docs/explanation/numbers.md)."""

NARROWER: tuple[tuple[str, float], ...] = (("float16 or TF32", 2.0**13), ("bfloat16", 2.0**16))
"""Narrower types, and their rounding as a multiple of float32's."""


@dataclass(frozen=True)
class Deviation:
    """The errors of one run by the exact values, over the elements that can be judged.

    These are finite in the exact and the plain run, or the same NaN or infinity in both. ``rms`` is the root mean
    square of the errors, ``maximum`` the greatest, ``worst`` its element (None if there is no error). ``broken`` counts
    elements that are finite here and not in both other runs, or the other way round.
    """

    rms: float
    maximum: float
    worst: Element | None
    broken: int


@dataclass(frozen=True, kw_only=True)
class NoiseComparison:
    """The verdict on one output of one iteration.

    ``ratio`` is the error as a multiple of plain float32's (at least one rounding of the exact values): the greater
    one of the ratios of rms errors and of maximum errors, over the whole output or the worst ``part`` (a slice, a
    class of magnitude). It is 0 without an error, inf if elements are broken. ``reason`` says in a few words why the
    error is a bug or the verdict unknown; None if it is rounding. ``aside`` counts elements that are not judged, since
    a rounding of the inputs flips them.
    """

    name: str
    iteration: int
    verdict: Verdict
    reason: str | None
    ratio: float
    limit: float
    suspect: Deviation | None
    plain: Deviation | None
    shape: tuple[int, ...]
    dtype: str
    part: str | None = None
    aside: int = 0

    @property
    def passed(self) -> bool:
        """Whether rounding explains the error."""
        return self.verdict == "rounding"


@dataclass(frozen=True, kw_only=True)
class NoiseReport:
    """The verdicts on a suspect run. ``only_suspect`` are outputs that the exact or the plain run lacks."""

    suspect: str
    plain: str
    exact: str
    outputs: tuple[NoiseComparison, ...]
    only_suspect: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether rounding explains all errors that could be judged, and at least one output could be."""
        return self.conclusive and not self.failures

    @property
    def conclusive(self) -> bool:
        """Whether any output could be judged."""
        return any(output.verdict != "unknown" for output in self.outputs)

    @property
    def failures(self) -> tuple[NoiseComparison, ...]:
        """The outputs with errors that rounding does not explain, in order."""
        return tuple(output for output in self.outputs if output.verdict == "bug")

    @property
    def unjudged(self) -> tuple[NoiseComparison, ...]:
        """The outputs that could not be judged, in order."""
        return tuple(output for output in self.outputs if output.verdict == "unknown")


def compare_noise(
    suspect: RunnerResult, plain: RunnerResult, exact: RunnerResult, limits: Mapping[str, float] | None = None
) -> NoiseReport:
    """Judge every output that all three runs have.

    ``limits``: the greatest multiple of plain float32's error that is rounding, by output name, "" for all others.
    Raises CannotCompare if no output is common.
    """
    limits = limits or {}
    judged = []
    alone: dict[str, None] = {}  # outputs of the suspect run only
    runs = zip(suspect.iterations, plain.iterations, exact.iterations, strict=False)
    for number, iterations in enumerate(runs):
        for name in iterations[0].outputs:
            if not all(name in iteration.outputs for iteration in iterations):
                alone[name] = None
                continue
            of_suspect, of_plain, of_exact = sides = [iteration.outputs[name] for iteration in iterations]
            limit = limits.get(name, limits.get("", DEFAULT_RATIO))
            judged.append(judge_noise(name, number, of_suspect, of_plain, of_exact, limit))
            release(*sides)
    if not judged:
        raise errors.CannotCompare(
            f"there is nothing to compare: {suspect.runner}, {plain.runner} and {exact.runner} have no output in common"
        )
    return NoiseReport(
        suspect=suspect.runner, plain=plain.runner, exact=exact.runner, outputs=tuple(judged), only_suspect=tuple(alone)
    )


def judge_noise(
    name: str, iteration: int, suspect: Array, plain: Array, exact: Array, limit: float = DEFAULT_RATIO
) -> NoiseComparison:
    """Judge one output of any type; a different string is an error of 1."""
    comparison = NoiseComparison(
        name=name,
        iteration=iteration,
        verdict="unknown",
        reason=None,
        ratio=0.0,
        limit=limit,
        suspect=None,
        plain=None,
        shape=suspect.shape,
        dtype="string" if is_text(suspect) else suspect.dtype.name,
    )
    if plain.shape != exact.shape:
        reason: str | None = f"a plain run has the shape {list(plain.shape)}, float64 {list(exact.shape)}"
        return replace(comparison, reason=reason)
    if suspect.shape != exact.shape:
        reason = f"shapes differ: {list(suspect.shape)}, expected {list(exact.shape)}"
        return replace(comparison, verdict="bug", reason=reason, ratio=math.inf)
    if any(is_text(side) for side in (suspect, plain, exact)):
        if metrics.differing(plain, exact).any() and metrics.differing(suspect, plain).any():
            return replace(comparison, reason="float64 gives other strings than a plain run")
        # Replace strings by 0 if they equal the exact ones, else by 1.
        suspect, plain, exact = (metrics.differing(side, exact).astype(np.uint8) for side in (suspect, plain, exact))
    # Elements that overflow in plain float32 say nothing about the engine.
    left, right = (metrics.numeric(side).reshape(-1) for side in (plain, exact))
    trusted = np.isfinite(left) & np.isfinite(right)
    if not trusted.all():
        trusted |= (left == right) | (np.isnan(left) & np.isnan(right))
    if not trusted.any():
        reason = "it has no elements" if not trusted.size else "a plain run is NaN or infinite in all its elements"
        return replace(comparison, reason=reason)
    errors_of = errors_between(suspect, exact).absolute, errors_between(plain, exact).absolute
    deviation, noise = (
        _deviation(side, exact, trusted, absolute) for side, absolute in zip((suspect, plain), errors_of, strict=True)
    )
    roundoff = differences.unit_roundoff(plain.dtype)
    sizes = np.abs(metrics.numeric(exact)).reshape(-1).astype(np.float64)
    sizes = np.where(trusted & np.isfinite(sizes), sizes, 0)
    floor = roundoff * _rms(sizes), roundoff * float(sizes.max(initial=0))
    pairs = (deviation.rms, max(noise.rms, floor[0])), (deviation.maximum, max(noise.maximum, floor[1]))
    ratio = math.inf if deviation.broken else max(_divided(error, plain_error) for error, plain_error in pairs)
    part = None
    if roundoff and 0 < ratio <= limit:
        # An engine may treat denormal numbers as 0, except those of float16.
        half = plain.dtype.name == "float16"
        least = np.finfo("float16").smallest_subnormal if half else np.finfo("float32").tiny
        arrays = (*(np.where(trusted, side, 0) for side in errors_of), sizes)
        errs, noises, values = (array.astype(np.float64, copy=False).reshape(exact.shape) for array in arrays)
        parts = PartErrors(suspect=errs, plain=noises, sizes=values, limit=limit, roundoff=roundoff, least=float(least))
        ratio, part = parts.wrong_part() or (ratio, None)
    reason = _reason(deviation, ratio, limit, part)
    verdict: Verdict = "rounding" if reason is None else "bug"
    if reason is None and (overflowing := _far_where_plain_overflows(suspect, plain, exact)):
        verdict, reason = "unknown", f"a plain run overflows in {overflowing} elements, in which it gives other values"
    return replace(comparison, verdict=verdict, reason=reason, ratio=ratio, suspect=deviation, plain=noise, part=part)


def explained_by(ratio: float, dtype: str = "float32") -> str | None:
    """The narrower type whose rounding explains an error; None if no type does, or ``dtype`` itself does."""
    if dtype in {"float16", "bfloat16"}:
        return None
    factor = 2.0**29 if dtype in {"float64", "complex128"} else 1.0
    types = (("float32", 1.0), *NARROWER) if factor > 1 else NARROWER
    return next((name for name, times in types if DEFAULT_RATIO < ratio <= DEFAULT_RATIO * times * factor), None)


def _deviation(actual: Array, exact: Array, trusted: metrics.Bools, absolute: Floats) -> Deviation:
    judged = np.where(trusted, absolute, 0)
    broken = int(np.isinf(judged).sum())
    finite = judged[np.isfinite(judged)] if broken else judged
    return Deviation(_rms(finite), float(finite.max(initial=0)), worst(actual, exact, judged), broken)


def _rms(values: Floats) -> float:
    largest = float(values.max(initial=0))
    return largest * math.sqrt(float(np.mean((values / largest) ** 2))) if largest > 0 else 0.0


_FAR = 0.01


def _far_where_plain_overflows(suspect: Array, plain: Array, exact: Array) -> int:
    """How many elements are finite and far from float64's, which are finite, where those of a plain run are not."""
    values, narrow, right = (metrics.numeric(side).reshape(-1) for side in (suspect, plain, exact))
    open_to_doubt = np.isfinite(right) & np.isfinite(values) & ~np.isfinite(narrow)
    with np.errstate(over="ignore", invalid="ignore"):
        return int((open_to_doubt & (np.abs(values - right) > _FAR * np.abs(right))).sum())


def _divided(error: float, noise: float) -> float:
    if error == 0:
        return 0.0
    return error / noise if noise > 0 else math.inf


def _reason(deviation: Deviation, ratio: float, limit: float, part: str | None) -> str | None:
    if deviation.broken:
        elements = "1 element is" if deviation.broken == 1 else f"{deviation.broken} elements are"
        if deviation.worst is None or np.isfinite(np.asarray(deviation.worst.expected)):
            return f"{elements} NaN or infinite, but finite in a plain run and float64"
        return f"{elements} not the NaN or infinity that a plain run and float64 both give"
    if ratio <= limit:
        return None
    if math.isinf(ratio):
        return "it differs where a plain run has no error"
    place = "" if part is None else f" {part}"
    return f"its error{place} is {ratio:.3g} times the rounding error of a plain run"


_FEWEST_ELEMENTS = 8
"""A part with fewer elements other than 0 is not judged."""

_SHARE_WRONG = 0.75
"""A part is wrong if at least this share of these elements is."""

_SLICE_FACTOR = 3.0
"""The limit of a slice as a multiple of the whole tensor's: plain float32 may be exact in one of many by luck."""

_CLASS_FACTOR = 1000.0
"""The same for a class of magnitude: functions are approximated to an absolute error, which is large in their tails."""

_CLASS_BITS = 10
"""Powers of two in one class of magnitude."""


@dataclass(frozen=True, kw_only=True)
class PartErrors:
    """Finds a wrong part of a tensor: small values whose errors are hidden by rounding errors of great values.

    Parts are slices along every axis, rows of every depth, and classes of magnitude. A part is wrong if most of its
    elements are: a single one may be the small result of a subtraction of great values. The noise of all parts is that
    of the part with the most noise, since plain float32 may be exact in one part by luck.

    ``suspect`` and ``plain`` are the errors of both runs, ``sizes`` the exact magnitudes: finite, of the tensor's
    shape, and 0 for elements that are not judged. Up to ``limit`` times the noise is rounding; the noise is at least
    ``roundoff`` times a value, and ``least``, below which an engine may treat values as 0.
    """

    suspect: Floats
    plain: Floats
    sizes: Floats
    limit: float
    roundoff: float
    least: float

    def wrong_part(self) -> tuple[float, str] | None:
        """The error of the worst wrong part as a multiple of its noise, and its place: a slice, else a class."""
        if not self.suspect.any():
            return None
        axes = range(self.suspect.ndim)
        slices = [tuple(other for other in axes if other != axis) for axis in axes]
        rows = [tuple(axes[depth:]) for depth in axes[2:]]
        parts = [part for within in slices + rows if (part := self._worst_slice(within)) is not None]
        return max(parts or self._classes(), key=lambda part: part[0], default=None)

    def _worst_slice(self, within: tuple[int, ...]) -> tuple[float, str] | None:
        """The worst of the slices that extend along the axes ``within``; None if none is wrong."""
        shape = self.suspect.shape
        if math.prod(shape[axis] for axis in within) < _FEWEST_ELEMENTS:
            return None
        noise = self._relative_noise(within).max(initial=self.roundoff)
        ratios = self._ratios(within, float(noise), _SLICE_FACTOR)
        place = np.unravel_index(int(ratios.argmax()), ratios.shape)
        indices = [":" if axis in within else str(int(place[axis])) for axis in range(len(shape))]
        return (float(ratios[place]), f"in the slice [{', '.join(indices)}]") if ratios[place] > 0 else None

    def _classes(self) -> Iterator[tuple[float, str]]:
        """The wrong classes of magnitude, greatest first; none if all elements are in one class."""
        suspect, plain, sizes = (side.reshape(-1) for side in (self.suspect, self.plain, self.sizes))
        exponents = np.frexp(sizes)[1] // _CLASS_BITS
        numbers = np.unique(exponents[sizes > 0])[::-1]
        noise = self.roundoff
        for number in numbers if len(numbers) > 1 else ():
            members = np.flatnonzero((exponents == number) & (sizes > 0))
            part = replace(self, suspect=suspect[members], plain=plain[members], sizes=sizes[members])
            noise = max(noise, float(part._relative_noise((0,))[0]))
            ratio = float(part._ratios((0,), noise, _CLASS_FACTOR)[0])
            if ratio > 0:
                yield ratio, f"among the {len(members)} values of {part.sizes.min():.2g} to {part.sizes.max():.2g}"

    def _relative_noise(self, within: tuple[int, ...]) -> Floats:
        """The error of plain float32 in each slice, relative to its values."""
        plain, sizes = (_rms_of_slices(side, within) for side in (self.plain, self.sizes))
        with np.errstate(over="ignore"):
            return np.divide(plain, sizes, out=np.zeros_like(sizes), where=sizes > 0)

    def _ratios(self, within: tuple[int, ...], noise: float, factor: float) -> Floats:
        """The error of each slice as a multiple of its noise, if most of its elements are wrong; else 0."""
        with np.errstate(over="ignore"):
            rounded = np.maximum(np.maximum(noise * self.sizes, self.plain), self.least)
            wrong = self.suspect > factor * self.limit * rounded
            counted = np.count_nonzero(self.sizes, axis=within, keepdims=True)
            needed = _SHARE_WRONG * np.maximum(counted, _FEWEST_ELEMENTS)
            is_wrong = np.count_nonzero(wrong, axis=within, keepdims=True) >= needed
            # Great values that are right do not hide how wrong the others are.
            errors_there, noise_there = np.where(wrong, self.suspect, 0), np.where(wrong, rounded, 0)
            noises = _rms_of_slices(noise_there, within)
            ratios = np.divide(
                _rms_of_slices(errors_there, within), noises, out=np.zeros_like(noises), where=noises > 0
            )
        return np.where(is_wrong & (counted >= _FEWEST_ELEMENTS), ratios, 0)


def _rms_of_slices(values: Floats, within: tuple[int, ...]) -> Floats:
    """Root mean squares of slices, scaled by their greatest values so that squares neither overflow nor vanish."""
    highest = values.max(axis=within, keepdims=True)
    scale = np.where(highest > 0, highest, 1)
    result: Floats = scale * np.sqrt(np.square(values / scale).mean(axis=within, keepdims=True))
    return result


ROUNDINGS = 1000.0
"""Plain float32 errs by less than this many roundings of the result in most models; more needs a second opinion."""


def is_doubtful(plain: RunnerResult, exact: RunnerResult) -> bool:
    """Whether an output of the plain run is so far from the exact one that its own kernels may be wrong."""
    return any(
        _roundings(value, right.outputs[name]) > ROUNDINGS
        for left, right in zip(plain.iterations, exact.iterations, strict=False)
        for name, value in left.outputs.items()
        if name in right.outputs
    )


def without_flips(
    output: NoiseComparison, sides: tuple[Array, Array, Array], moved: Sequence[Array]
) -> NoiseComparison:
    """Judge an output again without the elements that rounding alone can flip; unchanged if it still fails.

    ``sides`` are the suspect, the plain and the exact values, ``moved`` those of runs with slightly changed values.
    A discrete value (an index, a quantized value, a comparison) flips as a whole, and plain float32 may be right by
    luck. An element is left out only if its error is no greater than the changes in these runs.
    """
    suspect, plain, exact = sides
    if any(is_text(side) or side.shape != exact.shape for side in (*sides, *moved)):
        return output
    error = errors_between(suspect, exact).absolute
    # An input that rounding moves out of an operator's domain gives NaN, which says nothing about its neighbours.
    changes = [errors_between(side, exact).absolute for side in moved]
    greatest_change = np.max([np.where(np.isfinite(change), change, 0) for change in changes], axis=0)
    aside = (np.isfinite(error) & (error > 0) & (error <= greatest_change * _MARGIN)).reshape(exact.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.where(aside, exact.astype(suspect.dtype), suspect)
    again = judge_noise(output.name, output.iteration, values, plain, exact, output.limit)
    return replace(again, aside=int(aside.sum())) if again.passed else output


_MARGIN = 1.01
"""An error this many times the greatest change counts as no greater."""


def closest(plain: RunnerResult, other: RunnerResult, exact: RunnerResult) -> RunnerResult:
    """The plain run, with the outputs of ``other`` that are closer to the exact values by more than chance.

    Plain float32 may have a bug itself, since an engine with its optimizer off still has its own kernels. The same bug
    in the suspect would then pass as rounding.
    """
    is_mixed = False

    def outputs_of(number: int, left: Iteration) -> dict[str, Array]:
        nonlocal is_mixed
        right, true = other.iterations[number], exact.iterations[number]
        outputs = dict(left.outputs)
        for name in outputs.keys() & right.outputs.keys() & true.outputs.keys():
            first, second, exact_value = left.outputs[name], right.outputs[name], true.outputs[name]
            is_bug = judge_noise("", 0, first, second, exact_value).verdict == "bug"
            if is_bug and _roundings(first, exact_value) > ROUNDINGS:
                outputs[name] = second
                is_mixed = True
        return outputs

    count = min(len(side.iterations) for side in (plain, other, exact))
    merged = replace(plain, iterations=plain.iterations[:count]).with_outputs(outputs_of)
    return replace(merged, runner=f"{plain.runner} or {other.runner}" if is_mixed else plain.runner)


def _roundings(value: Array, exact: Array) -> float:
    """The error of a run in roundings of its result."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact if value.dtype.kind in "USO" else exact.astype(value.dtype)
    return judge_noise("", 0, value, rounded, exact, ROUNDINGS).ratio


NARROWER_TYPES: Mapping[str, tuple[str, ...]] = {
    "float64": ("float32", "float16", "tf32", "bfloat16"),
    "float32": ("float16", "tf32", "bfloat16"),
    "float16": ("bfloat16",),
}
"""The types to simulate for results of a type."""

MOST_LEFT = 0.1
"""The greatest share of an error that may be left beside the simulation.

An engine that sums in another order rounds a few results to the other neighbour, which leaves less; an error that is
no rounding leaves more than half.
"""

_FEWEST_VALUES = 8
_CHANGED = 2.0**-30
"""What rounding changes by less than this, relatively, is no evidence."""


def share_left(
    actual: Sequence[Mapping[str, Array]], exact: Sequence[Mapping[str, Array]], rounded: Sequence[Mapping[str, Array]]
) -> float | None:
    """The share of an engine's error that is left if it is measured from ``rounded`` instead of ``exact`` outputs.

    Each has the outputs of every sample by name: of the engine, of float64, and of float64 with values rounded to a
    narrower type. Errors are summed per output; the greatest share counts. None if that says nothing: rounding changes
    fewer than eight different values of an output that is wrong, or other elements are finite.
    """
    shares = []
    for name in actual[0]:
        sides = [[sample.get(name) for sample in samples] for samples in (actual, exact, rounded)]
        if any(value is None or is_text(value) for side in sides for value in side):
            return None
        of_engine, right, simulated = (_joined([value for value in side if value is not None]) for side in sides)
        if not of_engine.size == right.size == simulated.size:
            return None
        finite = np.isfinite(right)
        if any(not np.array_equal(np.isfinite(side), finite) for side in (of_engine, simulated)):
            return None
        of_engine, right, simulated = of_engine[finite], right[finite], simulated[finite]
        error, left = float(np.abs(of_engine - right).sum()), float(np.abs(of_engine - simulated).sum())
        changed = right[np.abs(simulated - right) > _CHANGED * np.abs(right)]
        if error == 0 and not changed.size:
            continue  # no rounding in either, such as indices
        if error == 0 or np.unique(changed).size < _FEWEST_VALUES:
            return None
        shares.append(left / error)
    return max(shares, default=None)


def _joined(values: Sequence[Array]) -> Array:
    return np.concatenate([metrics.numeric(value).astype(np.float64).reshape(-1) for value in values])
