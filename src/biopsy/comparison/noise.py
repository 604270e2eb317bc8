"""A bug or only rounding: the error of an engine, measured by the error that plain float32 has on the same model.

Three runs with the same inputs: the *suspect*, *plain* (the model's own types, nothing optimized), and *exact* (all in
float64). What rounding can do to an output depends on the model, and the error of plain float32 shows it; an engine
that only rounds elsewhere, or in another order, errs about as much. So errors are told as multiples of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.comparison import metrics, similarity
from biopsy.comparison.metrics import Element, Floats
from biopsy.tensors.results import Array, RunnerResult, release

Verdict: TypeAlias = Literal["rounding", "bug"]

DEFAULT_RATIO = 10.0
"""How many times the error of plain float32 still is rounding (measured: docs/explanation/numbers.md)."""

NARROWER: tuple[tuple[str, float], ...] = (("float16 or TF32", 2.0**13), ("bfloat16", 2.0**16))
"""Types whose rounding is so many times that of float32."""


@dataclass(frozen=True)
class Deviation:
    """The errors of one run against the exact values, of elements that are finite there and in the plain run.

    ``rms`` is the root of their mean square, ``maximum`` the greatest, ``worst`` where that is (None if there is no
    error). ``broken`` counts elements that are not finite although they are in the others.
    """

    rms: float
    maximum: float
    worst: Element | None
    broken: int


@dataclass(frozen=True)
class NoiseComparison:
    """The verdict on one output of one iteration.

    ``ratio`` is the greater of the two: rms error to rms error, greatest error to greatest error; that of plain float32
    is taken as no less than rounding the exact values to the output's type. It is 0 where there is no error, inf where
    something is broken. ``reason`` says in a few words why it is a bug; None where it is rounding.
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

    @property
    def passed(self) -> bool:
        """Whether rounding explains the error."""
        return self.verdict == "rounding"


@dataclass(frozen=True)
class NoiseReport:
    """The verdict on a suspect. ``only_suspect`` are outputs that the exact run, or the plain one, does not have."""

    suspect: str
    plain: str
    exact: str
    outputs: tuple[NoiseComparison, ...]
    only_suspect: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether rounding explains all errors."""
        return all(output.passed for output in self.outputs)

    @property
    def failures(self) -> tuple[NoiseComparison, ...]:
        """The outputs that are wrong by more than rounding, in order."""
        return tuple(output for output in self.outputs if not output.passed)


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
    for number, (one, two, three) in enumerate(
        zip(suspect.iterations, plain.iterations, exact.iterations, strict=False)
    ):
        for name in one.outputs:
            if name not in two.outputs or name not in three.outputs:
                alone[name] = None
                continue
            sides = one.outputs[name], two.outputs[name], three.outputs[name]
            judged.append(judge_noise(name, number, *sides, limits.get(name, limits.get("", DEFAULT_RATIO))))
            release(*sides)
    if not judged:
        raise errors.CannotCompare(
            f"there is nothing to compare: {suspect.runner}, {plain.runner} and {exact.runner} have no output in common"
        )
    return NoiseReport(suspect.runner, plain.runner, exact.runner, tuple(judged), tuple(alone))


def judge_noise(
    name: str, iteration: int, suspect: Array, plain: Array, exact: Array, limit: float = DEFAULT_RATIO
) -> NoiseComparison:
    """Judge one output. Numbers of any type; strings and whole numbers err by 1 and by their difference."""
    about = suspect.shape, "string" if metrics.is_text(suspect) else suspect.dtype.name
    if not suspect.shape == plain.shape == exact.shape:
        differ = f"shapes differ: {list(suspect.shape)}, expected {list(exact.shape)}"
        return NoiseComparison(name, iteration, "bug", differ, math.inf, limit, None, None, *about)
    if any(metrics.is_text(side) for side in (suspect, plain, exact)):
        suspect, plain, exact = _as_numbers(suspect, plain, exact)
    trusted = _finite(plain) & _finite(exact)
    ours, theirs = _deviation(suspect, exact, trusted), _deviation(plain, exact, trusted)
    ratio = _ratio(ours, theirs, exact, trusted, similarity.unit_roundoff(plain.dtype))
    reason = _reason(ours, ratio, limit)
    verdict: Verdict = "rounding" if reason is None else "bug"
    return NoiseComparison(name, iteration, verdict, reason, ratio, limit, ours, theirs, *about)


def explained_by(ratio: float) -> str | None:
    """The narrower type whose rounding would err so much; None if it is more than any would, or float32's."""
    return next((name for name, times in NARROWER if DEFAULT_RATIO < ratio <= DEFAULT_RATIO * times), None)


def _finite(array: Array) -> metrics.Bools:
    found: metrics.Bools = np.isfinite(metrics.numeric(array)).reshape(-1)
    return found


def _as_numbers(*sides: Array) -> Sequence[Array]:
    """Strings as 0 where they are the exact ones (the last of ``sides``), else 1."""
    return [metrics.differing(side, sides[-1]).astype(np.uint8) for side in sides]


def _deviation(actual: Array, exact: Array, trusted: metrics.Bools) -> Deviation:
    found = metrics.errors_between(actual, exact)
    # Where float32 itself overflows, or the model gives NaN, nothing is said about the engine.
    errors_ = np.where(trusted, found.absolute, 0)
    broken = int(np.isinf(errors_).sum()) if found.broken else 0
    finite = errors_[np.isfinite(errors_)] if broken else errors_
    return Deviation(_rms(finite), float(finite.max(initial=0)), metrics.worst(actual, exact, errors_), broken)


def _rms(values: Floats) -> float:
    largest = float(values.max(initial=0))
    return largest * math.sqrt(float(np.mean((values / largest) ** 2))) if largest > 0 else 0.0


def _ratio(ours: Deviation, theirs: Deviation, exact: Array, trusted: metrics.Bools, roundoff: float) -> float:
    if ours.broken:
        return math.inf
    values = np.abs(metrics.numeric(exact).reshape(-1)[trusted]).astype(np.float64)
    least = roundoff * _rms(values), roundoff * float(values.max(initial=0))
    pairs = ((ours.rms, max(theirs.rms, least[0])), (ours.maximum, max(theirs.maximum, least[1])))
    return max(_divided(error, noise) for error, noise in pairs)


def _divided(error: float, noise: float) -> float:
    if error == 0:
        return 0.0
    return error / noise if noise > 0 else math.inf


def _reason(ours: Deviation, ratio: float, limit: float) -> str | None:
    if ours.broken:
        some = "1 element is" if ours.broken == 1 else f"{ours.broken} elements are"
        return f"{some} NaN or infinite, but finite in float32 and float64"
    if ratio <= limit:
        return None
    if math.isinf(ratio):
        return "it differs where float32 has no error"
    return f"its error is {ratio:.3g} times that of plain float32"
