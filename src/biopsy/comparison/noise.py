"""A bug or only rounding: the error of an engine, measured by the error that plain float32 has on the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.comparison import differences, metrics
from biopsy.comparison.metrics import Element, Floats, errors_between
from biopsy.tensors.results import Array, Iteration, RunnerResult, release
from biopsy.tensors.types import is_text

Verdict: TypeAlias = Literal["rounding", "bug", "unknown"]
"""``unknown``: there is nothing to judge by."""

DEFAULT_RATIO = 10.0
"""How many times the error of plain float32 still is rounding (measured: docs/explanation/numbers.md)."""

NARROWER: tuple[tuple[str, float], ...] = (("float16 or TF32", 2.0**13), ("bfloat16", 2.0**16))
"""Types whose rounding is so many times that of float32."""


@dataclass(frozen=True)
class Deviation:
    """The errors of one run against the exact values, of elements that can be judged.

    These are the ones that are finite in the exact and the plain run, or the same NaN or infinity in both. ``rms`` is
    the root of their mean square, ``maximum`` the greatest, ``worst`` where that is (None if there is no error).
    ``broken`` counts elements that are not finite although they are in the others, or finite although they are not.
    """

    rms: float
    maximum: float
    worst: Element | None
    broken: int


@dataclass(frozen=True, kw_only=True)
class NoiseComparison:
    """The verdict on one output of one iteration.

    ``ratio`` is the greater of the two: rms error to rms error, greatest error to greatest error; that of plain float32
    is taken as no less than rounding the exact values to the output's type. It is that of the whole output, or of the
    ``part`` that is the worst (a slice, a class of magnitude). It is 0 where there is no error, inf where something is
    broken. ``reason`` says in a few words why it is a bug, or why nobody can tell; None where it is rounding.
    ``aside`` counts elements that are not judged, since they flip with a rounding of the inputs.
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
    """The verdict on a suspect. ``only_suspect`` are outputs that the exact run, or the plain one, does not have."""

    suspect: str
    plain: str
    exact: str
    outputs: tuple[NoiseComparison, ...]
    only_suspect: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether rounding explains all errors that could be judged, and there was something to judge."""
        return self.conclusive and not self.failures

    @property
    def conclusive(self) -> bool:
        """Whether any output could be judged."""
        return any(output.verdict != "unknown" for output in self.outputs)

    @property
    def failures(self) -> tuple[NoiseComparison, ...]:
        """The outputs that are wrong by more than rounding, in order."""
        return tuple(output for output in self.outputs if output.verdict == "bug")

    @property
    def unjudged(self) -> tuple[NoiseComparison, ...]:
        """The outputs about which nothing can be said, in order."""
        return tuple(output for output in self.outputs if output.verdict == "unknown")


def compare_noise(
    suspect: RunnerResult, plain: RunnerResult, exact: RunnerResult, limits: Mapping[str, float] | None = None
) -> NoiseReport:
    """Judge every output that all three runs have.

    ``limits``: how many times the plain error still is rounding, by output name, "" for all others.
    Raises CannotCompare if there is no such output.
    """
    limits = limits or {}
    judged = []
    alone: dict[str, None] = {}
    runs = zip(suspect.iterations, plain.iterations, exact.iterations, strict=False)
    for number, sides_of_run in enumerate(runs):
        for name in sides_of_run[0].outputs:
            if not all(name in side.outputs for side in sides_of_run):
                alone[name] = None
                continue
            ours, theirs, true = sides = [side.outputs[name] for side in sides_of_run]
            judged.append(
                judge_noise(name, number, ours, theirs, true, limits.get(name, limits.get("", DEFAULT_RATIO)))
            )
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
    """Judge one output. Numbers of any type; strings and whole numbers err by 1 and by their difference."""
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
        why = f"plain float32 has the shape {list(plain.shape)}, float64 {list(exact.shape)}"
        return replace(comparison, reason=why)
    if suspect.shape != exact.shape:
        differ = f"shapes differ: {list(suspect.shape)}, expected {list(exact.shape)}"
        return replace(comparison, verdict="bug", reason=differ, ratio=math.inf)
    if any(is_text(side) for side in (suspect, plain, exact)):
        # Strings as 0 where they are the exact ones, else 1.
        suspect, plain, exact = (metrics.differing(side, exact).astype(np.uint8) for side in (suspect, plain, exact))
    # Where float32 itself overflows, nothing is said about the engine.
    left, right = (metrics.numeric(side).reshape(-1) for side in (plain, exact))
    trusted = np.isfinite(left) & np.isfinite(right)
    if not trusted.all():
        trusted |= (left == right) | (np.isnan(left) & np.isnan(right))
    if not trusted.any():
        why = "it has no elements" if not trusted.size else "plain float32 is NaN or infinite in all its elements"
        return replace(comparison, reason=why)
    found = metrics.errors_between(suspect, exact).absolute, metrics.errors_between(plain, exact).absolute
    ours, theirs = (
        _deviation(side, exact, trusted, absolute) for side, absolute in zip((suspect, plain), found, strict=True)
    )
    roundoff = differences.unit_roundoff(plain.dtype)
    sizes = np.abs(metrics.numeric(exact)).reshape(-1).astype(np.float64)
    sizes = np.where(trusted & np.isfinite(sizes), sizes, 0)
    floor = roundoff * _rms(sizes), roundoff * float(sizes.max(initial=0))
    pairs = (ours.rms, max(theirs.rms, floor[0])), (ours.maximum, max(theirs.maximum, floor[1]))
    ratio = math.inf if ours.broken else max(_divided(error, noise) for error, noise in pairs)
    where = None
    if roundoff and 0 < ratio <= limit:
        # Denormal numbers an engine may take as 0, but for float16, which needs them.
        half = plain.dtype.name == "float16"
        least = np.finfo("float16").smallest_subnormal if half else np.finfo("float32").tiny
        sides = (*(np.where(trusted, side, 0) for side in found), sizes)
        errs, noise, values = (side.astype(np.float64, copy=False).reshape(exact.shape) for side in sides)
        parts = PartErrors(ours=errs, theirs=noise, sizes=values, limit=limit, roundoff=roundoff, least=float(least))
        ratio, where = parts.wrong_part() or (ratio, None)
    reason = _reason(ours, ratio, limit, where)
    verdict: Verdict = "rounding" if reason is None else "bug"
    return replace(comparison, verdict=verdict, reason=reason, ratio=ratio, suspect=ours, plain=theirs, part=where)


def explained_by(ratio: float, dtype: str = "float32") -> str | None:
    """The narrower type whose rounding would err so much; None if it is more than any would, or that of ``dtype``."""
    wider = 2.0**29 if dtype in {"float64", "complex128"} else 1.0
    named = (("float32", 1.0), *NARROWER) if wider > 1 else NARROWER
    return next((name for name, times in named if DEFAULT_RATIO < ratio <= DEFAULT_RATIO * times * wider), None)


def _deviation(actual: Array, exact: Array, trusted: metrics.Bools, absolute: Floats) -> Deviation:
    judged = np.where(trusted, absolute, 0)
    broken = int(np.isinf(judged).sum())
    finite = judged[np.isfinite(judged)] if broken else judged
    return Deviation(_rms(finite), float(finite.max(initial=0)), metrics.worst(actual, exact, judged), broken)


def _rms(values: Floats) -> float:
    largest = float(values.max(initial=0))
    return largest * math.sqrt(float(np.mean((values / largest) ** 2))) if largest > 0 else 0.0


def _divided(error: float, noise: float) -> float:
    if error == 0:
        return 0.0
    return error / noise if noise > 0 else math.inf


def _reason(ours: Deviation, ratio: float, limit: float, where: str | None) -> str | None:
    if ours.broken:
        some = "1 element is" if ours.broken == 1 else f"{ours.broken} elements are"
        if ours.worst is None or np.isfinite(np.asarray(ours.worst.expected)):
            return f"{some} NaN or infinite, but finite in float32 and float64"
        return f"{some} not the NaN or infinity that float32 and float64 both give"
    if ratio <= limit:
        return None
    if math.isinf(ratio):
        return "it differs where float32 has no error"
    place = "" if where is None else f" {where}"
    return f"its error{place} is {ratio:.3g} times that of plain float32"


# Errors of small values beside large ones: parts of a tensor, each judged by what rounding does to values of its
# size.
#
# The greatest error of a whole tensor is where its values are great, and a row of small values may be wrong below it.
# So slices along every axis are looked at, rows of every depth, and classes of magnitude. A part is wrong if most of
# its elements are: one alone may be the rest of what was subtracted, with the rounding of something great. And what
# rounding does is taken from the part where it does the most, for plain float32 may be exact in one part by luck.

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


@dataclass(frozen=True, kw_only=True)
class PartErrors:
    """Errors of a suspect and of plain float32 in one tensor, and the exact magnitudes: of the tensor's shape, finite.

    What is not to be judged is 0 in all three. Rounding is so many times (``limit``) the error of plain float32. That
    is taken as one rounding at least (``roundoff``, relative to a value), and as ``least``, below which an engine may
    take everything as 0.
    """

    ours: Floats
    theirs: Floats
    sizes: Floats
    limit: float
    roundoff: float
    least: float

    def wrong_part(self) -> tuple[float, str] | None:
        """How many times its noise the worst part errs, and where it is: a slice, else a class of magnitude."""
        if not self.ours.any():
            return None
        axes = range(self.ours.ndim)
        slices = [tuple(other for other in axes if other != axis) for axis in axes]
        rows = [tuple(axes[depth:]) for depth in axes[2:]]
        parts = [part for within in slices + rows if (part := self._worst_slice(within)) is not None]
        return max(parts or self._classes(), key=lambda part: part[0], default=None)

    def _worst_slice(self, within: tuple[int, ...]) -> tuple[float, str] | None:
        """The worst of the slices that hold what the axes ``within`` count."""
        shape = self.ours.shape
        if math.prod(shape[axis] for axis in within) < LEAST:
            return None
        noise = self._relative(within).max(initial=self.roundoff)
        ratios = self._ratios(within, float(noise), WIDER)
        place = np.unravel_index(int(ratios.argmax()), ratios.shape)
        written = [":" if axis in within else str(int(place[axis])) for axis in range(len(shape))]
        return (float(ratios[place]), f"in the slice [{', '.join(written)}]") if ratios[place] > 0 else None

    def _classes(self) -> Iterator[tuple[float, str]]:
        """Elements by the magnitude of the exact value, greatest first; none where there is one class."""
        ours, theirs, sizes = (side.reshape(-1) for side in (self.ours, self.theirs, self.sizes))
        exponents = np.frexp(sizes)[1] // _CLASS_BITS
        numbers = np.unique(exponents[sizes > 0])[::-1]
        noise = self.roundoff
        for number in numbers if len(numbers) > 1 else ():
            among = np.flatnonzero((exponents == number) & (sizes > 0))
            part = replace(self, ours=ours[among], theirs=theirs[among], sizes=sizes[among])
            noise = max(noise, float(part._relative((0,))[0]))
            ratio = float(part._ratios((0,), noise, WIDER_BY_SIZE)[0])
            if ratio > 0:
                yield ratio, f"among the {len(among)} values of {part.sizes.min():.2g} to {part.sizes.max():.2g}"

    def _relative(self, within: tuple[int, ...]) -> Floats:
        """What rounding does in each slice, relative to its values."""
        theirs, sizes = (_rms_of_slices(side, within) for side in (self.theirs, self.sizes))
        with np.errstate(over="ignore"):
            return np.divide(theirs, sizes, out=np.zeros_like(sizes), where=sizes > 0)

    def _ratios(self, within: tuple[int, ...], noise: float, wider: float) -> Floats:
        """How many times its noise each slice errs, where most of its elements are wrong; else 0."""
        with np.errstate(over="ignore"):
            rounded = np.maximum(np.maximum(noise * self.sizes, self.theirs), self.least)
            wrong = self.ours > wider * self.limit * rounded
            counted = np.count_nonzero(self.sizes, axis=within, keepdims=True)
            most = np.count_nonzero(wrong, axis=within, keepdims=True) >= np.maximum(MOST * counted, LEAST * MOST)
            ratios = _rms_of_slices(self.ours, within) / _rms_of_slices(rounded, within)
        return np.where(most & (counted >= LEAST), ratios, 0)


def _rms_of_slices(values: Floats, within: tuple[int, ...]) -> Floats:
    """Root mean squares of slices, scaled by their greatest values so that no square overflows or vanishes."""
    highest = values.max(axis=within, keepdims=True)
    scale = np.where(highest > 0, highest, 1)
    found: Floats = scale * np.sqrt(np.square(values / scale).mean(axis=within, keepdims=True))
    return found


# What plain float32 errs by may be a bug of its own: of two plain runs, the one that is closer to the exact values.
#
# An engine with its optimizer off still has the kernels of that engine. If they are wrong, so is the noise that is
# told from them, and the same bug in the suspect would pass as rounding.

ROUNDINGS = 1000.0
"""So many roundings of the result are more than plain float32 errs by in most models; more needs a second opinion."""


def is_doubtful(plain: RunnerResult, exact: RunnerResult) -> bool:
    """Whether the plain run is far from the exact one in any output."""
    return any(
        _roundings(value, right.outputs[name]) > ROUNDINGS
        for left, right in zip(plain.iterations, exact.iterations, strict=False)
        for name, value in left.outputs.items()
        if name in right.outputs
    )


def excused(output: NoiseComparison, sides: tuple[Array, Array, Array], moved: Sequence[Array]) -> NoiseComparison:
    """Judge an output again without the elements that rounding alone can flip; unchanged if it still fails.

    ``sides`` are the suspect, the plain and the exact values, ``moved`` those of plain runs on inputs that were moved a
    little. A discrete value (an index, a quantized value, a comparison) flips as a whole, and plain float32 may happen
    to fall on the right side. An element is excused only if its error is no larger than what the moved inputs cause.
    """
    suspect, plain, exact = sides
    if any(is_text(side) or side.shape != exact.shape for side in (*sides, *moved)):
        return output
    error = errors_between(suspect, exact).absolute
    # A number that a rounding moves out of an operator's domain is NaN there: that says nothing about its neighbours.
    changes = [errors_between(side, exact).absolute for side in moved]
    reach = np.max([np.where(np.isfinite(change), change, 0) for change in changes], axis=0)
    aside = (np.isfinite(error) & (error > 0) & (error <= reach * _ABOUT)).reshape(exact.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        rest = np.where(aside, exact.astype(suspect.dtype), suspect)
    again = judge_noise(output.name, output.iteration, rest, plain, exact, output.limit)
    return replace(again, aside=int(aside.sum())) if again.passed else output


_ABOUT = 1.01


def closest(plain: RunnerResult, other: RunnerResult, exact: RunnerResult) -> RunnerResult:
    """Output by output the plain run that is closer to the exact values by more than chance; else the first one."""
    taken: set[str] = set()

    def outputs_of(number: int, left: Iteration) -> dict[str, Array]:
        right, true = other.iterations[number], exact.iterations[number]
        outputs = dict(left.outputs)
        for name in outputs.keys() & right.outputs.keys() & true.outputs.keys():
            first, second, exact_value = left.outputs[name], right.outputs[name], true.outputs[name]
            is_bug = judge_noise("", 0, first, second, exact_value).verdict == "bug"
            if is_bug and _roundings(first, exact_value) > ROUNDINGS:
                outputs[name] = second
                taken.add(other.runner)
        return outputs

    count = min(len(side.iterations) for side in (plain, other, exact))
    merged = replace(plain, iterations=plain.iterations[:count]).with_outputs(outputs_of)
    return replace(merged, runner=" or ".join([plain.runner, *taken]))


def _roundings(value: Array, exact: Array) -> float:
    """How many roundings of the result a run errs by."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact if value.dtype.kind in "USO" else exact.astype(value.dtype)
    return judge_noise("", 0, value, rounded, exact, ROUNDINGS).ratio
