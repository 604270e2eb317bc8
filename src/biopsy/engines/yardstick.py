"""The runs that an engine's error is measured with: float64 and plain float32, or values moved by roundings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from biopsy import errors
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.mismatch_size import explained, only
from biopsy.comparison.noise import DEFAULT_RATIO, closest, is_doubtful
from biopsy.comparison.runs import RunComparison
from biopsy.engines.registry import EXACT, MOVED, PLAIN, create
from biopsy.tensors.results import RunnerResult
from biopsy.text import first_line

WIDER = 10.0
"""Factor for limits where float64 cannot run: inputs moved by one rounding show only a part of the noise."""

Run: TypeAlias = Callable[..., RunnerResult]
"""Runs an engine on one model and one set of inputs, called with (engine), or with (engine, roundings) to move the
inputs by a number of roundings first. Raises CannotCompare if that changes no input."""


@dataclass(frozen=True)
class Yardstick:
    """The results that errors are measured with. ``times``: a factor for the limits."""

    plain: RunnerResult
    exact: RunnerResult
    engine: str
    """The engine that computes in plain float32."""
    times: float = 1.0


def yardstick_of(run: Run, warn: Callable[[str], None], *, or_sensitivity: bool) -> Yardstick:
    """The results of float64 and of plain float32.

    Where float64 cannot run: those of float32, and of float32 with moved inputs, if ``or_sensitivity``. Raises
    CannotCompare.
    """

    def first_of(specs: Sequence[str], *roundings: int) -> RunnerResult:
        failures = []
        for engine in map(create, specs):
            try:
                return replace(run(engine, *roundings), runner=engine.label)
            except errors.EngineFailure as failure:
                failures.append(f"{engine.label} cannot {failure.stage} the model: {first_line(failure.message)}")
        raise errors.CannotCompare(f"there is nothing to measure noise with: {'; '.join(failures)}")

    try:
        exact = first_of([EXACT])
    except errors.CannotCompare as why:
        if not or_sensitivity:
            raise
        try:
            exact = first_of(PLAIN)
            moved = first_of([exact.runner], 1)
        except errors.CannotCompare as error:
            raise errors.CannotCompare(f"{why.message}; {error.message}") from error
        warn(
            f"{why.message.partition(': ')[2]}: {exact.runner} is the reference instead, and its noise is how far its "
            f"outputs move when every input is one rounding off; {DEFAULT_RATIO * WIDER:g} times that still is rounding"
        )
        moved = replace(moved, runner=f"{exact.runner} with inputs one rounding off")
        return Yardstick(moved, exact, exact.runner, WIDER)
    plain = first_of(PLAIN)
    if not is_doubtful(plain, exact) or plain.runner == PLAIN[-1]:
        return Yardstick(plain, exact, plain.runner)
    try:
        other = first_of(PLAIN[-1:])
    except errors.CannotCompare:
        warn(f"{plain.runner} is far from {exact.runner} itself: if it has a bug, the same bug looks like noise")
        return Yardstick(plain, exact, plain.runner)
    best = closest(plain, other, exact)
    return Yardstick(best, exact, plain.runner if best.runner == plain.runner else other.runner)


def rounding_between(pair: tuple[RunnerResult, RunnerResult], compared: RunComparison, run: Run) -> Rounding:
    """Whether rounding explains the differences; "unknown" if float64 cannot run, or lacks an output that differs."""
    names = {output.name for _, output in compared.failures}
    try:
        yardstick = yardstick_of(run, lambda text: None, or_sensitivity=False)
        results = (*pair, yardstick.plain, yardstick.exact)
        actual, expected, plain, exact = (only(result, names) for result in results)
        return explained(actual, expected, plain, exact, lambda: (run(create(spec)) for spec in MOVED))
    except errors.BiopsyError as error:
        return Rounding("unknown", reason=first_line(error.message))
