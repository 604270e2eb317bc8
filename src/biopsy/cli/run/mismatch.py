"""What ``biopsy run`` tells a reduction of a mismatch: its kinds, its size, and, if asked, whether it is rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.run.noise import yardsticks
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.rounding import explained, only
from biopsy.comparison.run_mismatches import run_mismatches
from biopsy.comparison.runs import RunComparison
from biopsy.engines.base import Engine
from biopsy.engines.registry import create
from biopsy.engines.yardsticks import EXACT
from biopsy.tensors.results import RunnerResult
from biopsy.text import first_line

if TYPE_CHECKING:
    from biopsy.cli.run.findings import Findings
    from biopsy.cli.run.inputs import Feeder

Pair = tuple[RunnerResult, RunnerResult]
"""What an engine gave, and what was expected of it."""

_ROUNDINGS = 10
_PERTURBED = 4
"""Runs with inputs changed by rounding: what is near a border is seen on its other side with 94 % in one of them."""


class Arbiter:
    """Tells by runs in float64 whether a mismatch is only rounding.

    ``rerun`` runs another engine on the same model, with the inputs of a feeder.
    """

    def __init__(self, rerun: Callable[[Engine, Feeder], RunnerResult], feeder: Feeder) -> None:
        self._rerun = rerun
        self._feeder = feeder

    def judge(self, pair: Pair, compared: RunComparison) -> Rounding:
        """Whether rounding explains what differs; "unknown" where float64 cannot run, or not on all that differs."""
        names = {output.name for _, output in compared.failures}
        try:
            exact, plain = yardsticks(lambda engine: self._rerun(engine, self._feeder))
            actual, expected, plain, exact = (only(side, names) for side in (*pair, plain, exact))
            return explained(actual, expected, plain, exact, self._perturbed)
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _perturbed(self) -> Iterator[RunnerResult]:
        for seed in range(_PERTURBED):
            try:
                source = self._feeder.roundings_off(_ROUNDINGS, seed)
            except errors.CannotCompare:
                return  # no input can be changed by a rounding, and no output by it
            yield self._rerun(create(EXACT), source)


def sized(found: Findings, pairs: Sequence[Pair], arbiter: Arbiter | None) -> Findings:
    """The findings with the size of the first mismatch, and, given an arbiter, with what float64 says of it."""
    first = next((at for at, one in enumerate(found.compared) if not one.passed), None)
    if first is None:
        return found
    pair, compared = pairs[first], found.compared[first]
    rounding = None if arbiter is None or compared.missing else arbiter.judge(pair, compared)
    return replace(found, mismatches=run_mismatches(*pair, compared), rounding=rounding)
