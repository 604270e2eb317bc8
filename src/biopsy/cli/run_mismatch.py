"""What ``biopsy run`` tells a reduction of a mismatch: its kinds, its size, and, if asked, whether it is rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.comparison.compare import RunComparison
from biopsy.comparison.mismatch import Mismatch, Rounding, most_telling
from biopsy.comparison.mismatch_size import mismatches_of
from biopsy.comparison.noise import NoiseReport
from biopsy.tensors.results import Iteration, RunnerResult, release

if TYPE_CHECKING:
    from biopsy.cli.run import Findings

Pair = tuple[RunnerResult, RunnerResult]
"""What an engine gave, and what was expected of it."""

Judge = Callable[[Sequence[RunnerResult]], Sequence[NoiseReport]]
"""Judges the outputs of whoever it is given against float64."""

_MOST_MEASURED = 64
_MOST_TOLD = 8


def sized(found: Findings, pairs: Sequence[Pair], judge: Judge | None) -> Findings:
    """The findings with the size of the first mismatch, and, if there is a ``judge``, with what float64 says of it."""
    first = next((at for at, one in enumerate(found.compared) if not one.passed), None)
    if first is None:
        return found
    pair, compared = pairs[first], found.compared[first]
    rounding = None if judge is None or compared.missing else told_rounding(pair, compared, judge)
    return replace(found, mismatches=measured(pair, compared), rounding=rounding)


def measured(pair: Pair, compared: RunComparison) -> tuple[Mismatch, ...]:
    """How the outputs of a comparison that fails differ: the greatest mismatches of each kind."""
    actual, expected = pair
    found = [Mismatch(output=name, kind="missing-output") for name in compared.missing]
    for number, output in compared.failures[:_MOST_MEASURED]:
        left, right = (side.iterations[number].outputs[output.name] for side in (actual, expected))
        found += mismatches_of(output, left, right)
        release(left, right)
    return most_telling(found, _MOST_TOLD)


def told_rounding(pair: Pair, compared: RunComparison, judge: Judge) -> Rounding:
    """Whether rounding explains what differs, judged against float64.

    Two engines may differ because either is wrong, and golden
    values may be what is wrong too. So only if both sides are within rounding the difference is.
    """
    names = {output.name for _, output in compared.failures}
    try:
        reports = judge([_only(side, names) for side in pair])
    except errors.BiopsyError as error:
        return Rounding("unknown", reason=error.message.splitlines()[0])
    judged = [output for report in reports for output in report.outputs]
    alone = {name for report in reports for name in report.only_suspect}
    greatest = max((output.ratio for output in judged), default=0.0)
    times = greatest if math.isfinite(greatest) else None
    if not all(output.passed for output in judged):
        return Rounding("bug", times)
    if alone:
        return Rounding("unknown", reason=f"{min(alone)!r} has no value in float64")
    return Rounding("rounding", times)


def _only(side: RunnerResult, names: set[str]) -> RunnerResult:
    """What a runner gave for some outputs."""
    return replace(
        side,
        iterations=tuple(
            Iteration({name: value for name, value in one.outputs.items() if name in names}) for one in side.iterations
        ),
    )
