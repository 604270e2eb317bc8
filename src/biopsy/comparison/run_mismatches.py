"""How the outputs of two runs differ, as a reduction is told."""

from __future__ import annotations

from biopsy.comparison.mismatch import Mismatch, most_telling
from biopsy.comparison.mismatch_size import mismatches_of
from biopsy.comparison.runs import RunComparison
from biopsy.tensors.results import RunnerResult, release

_MOST_MEASURED = 64
_MOST_TOLD = 8


def run_mismatches(actual: RunnerResult, expected: RunnerResult, compared: RunComparison) -> tuple[Mismatch, ...]:
    """How the outputs of a comparison that fails differ: the greatest mismatches of each kind."""
    found = [Mismatch(output=name, kind="missing-output") for name in compared.missing]
    for number, output in compared.failures[:_MOST_MEASURED]:
        left, right = (side.iterations[number].outputs[output.name] for side in (actual, expected))
        found += mismatches_of(output, left, right)
        release(left, right)
    return most_telling(found, _MOST_TOLD)
