"""What plain float32 errs by may be a bug of its own: of two plain runs, the one that is closer to the exact values.

An engine with its optimizer off still has the kernels of that engine. If they are wrong, so is the noise that is told
from them, and the same bug in the suspect would pass as rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from biopsy.comparison.noise import judge_noise
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
