"""What plain float32 errs by may be a bug of its own: of two plain runs, the one that is closer to the exact values.

An engine with its optimizer off still has the kernels of that engine. If they are wrong, so is the noise that is told
from them, and the same bug in the suspect would pass as rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from biopsy.comparison.metrics import errors_between
from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.tensors.dtypes import is_text
from biopsy.tensors.results import Array, Iteration, RunnerResult

ROUNDINGS = 1000.0
"""So many roundings of the result are more than plain float32 errs by in most models; more needs a second opinion."""


def is_doubtful(plain: RunnerResult, exact: RunnerResult) -> bool:
    """Whether the plain run is far from the exact one in any output."""
    pairs = zip(plain.iterations, exact.iterations, strict=False)
    return any(
        _roundings(value, right.outputs[name]) > ROUNDINGS
        for left, right in pairs
        for name, value in left.outputs.items()
        if name in right.outputs
    )


def excused(output: NoiseComparison, sides: tuple[Array, Array, Array], moved: Sequence[Array]) -> NoiseComparison:
    """Judge an output again (suspect, plain, exact), elements aside that flip in a plain run on ``moved`` inputs.

    What is discrete (an index, a quantized value, a comparison) flips as a whole when a rounding does, and plain
    float32 may happen to fall on the right side: then it says nothing about what rounding can do. An element is
    excused only if it errs by no more than it moves itself.
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
    iterations = []
    taken: set[str] = set()
    for left, right, true in zip(plain.iterations, other.iterations, exact.iterations, strict=False):
        outputs = dict(left.outputs)
        for name, value in outputs.items():
            if (
                name in right.outputs
                and name in true.outputs
                and _is_closer(right.outputs[name], value, true.outputs[name])
            ):
                outputs[name] = right.outputs[name]
                taken.add(other.runner)
        iterations.append(Iteration(outputs))
    return replace(plain, runner=" or ".join([plain.runner, *taken]), iterations=tuple(iterations))


def _is_closer(one: Array, other: Array, exact: Array) -> bool:
    """Whether the other is wrong by more than rounding, as the one has it."""
    return judge_noise("", 0, other, one, exact).verdict == "bug" and _roundings(other, exact) > ROUNDINGS


def _roundings(value: Array, exact: Array) -> float:
    """How many roundings of the result a run errs by."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact if value.dtype.kind in "USO" else exact.astype(value.dtype)
    return judge_noise("", 0, value, rounded, exact, ROUNDINGS).ratio
