"""Comparing what two runs gave.

comparison = biopsy.compare(actual, expected, rtol=1e-3)
assert comparison.passed, comparison.failures
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from biopsy.api.arguments import require_choice, tolerances_by_name
from biopsy.api.inputs import require_arrays
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.spoken_of import names_of, require_known_outputs, spoken_of
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Stat, Stats, Tolerances
from biopsy.tensors.results import Feed, Iteration, RunnerResult


def compare(
    actual: RunnerResult | Feed,
    expected: RunnerResult | Feed,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    stat: Stat | Mapping[str, Stat] = "elemwise",
) -> RunComparison:
    """Compare what a run gave with what is expected, output by output, by name.

    Either side is a result of ``run`` or a dictionary of tensors. Tolerances and the statistic held against them are
    for all outputs, or by name with ``""`` for all others. Shapes must agree; types need not, numbers are compared by
    value. ``passed`` of the result is the verdict, ``failures`` has the outputs that fail.

    Raises CannotCompare if the two have no output in common, or none that has an element; DoesNotFit for a name that
    neither has; UsageError for an unknown ``stat``, a tolerance that is none, and what is no dictionary of arrays.
    """
    tolerances, stats = asked_of_outputs(atol, rtol, stat)
    sides = _result(actual, "actual"), _result(expected, "expected")
    require_known_outputs(spoken_of(tolerances, stats), {name for one in sides for name in names_of(one)})
    return compare_runs(*sides, tolerances, stats)


def asked_of_outputs(
    atol: float | Mapping[str, float], rtol: float | Mapping[str, float], stat: Stat | Mapping[str, Stat]
) -> tuple[Tolerances, Stats]:
    """Tolerances and statistics by name. Raises UsageError for what is none."""
    stats = stat if isinstance(stat, Mapping) else {"": stat}
    for one in stats.values():
        require_choice("stat", one, get_args(Stat))
    return Tolerances(tolerances_by_name("atol", atol), tolerances_by_name("rtol", rtol)), Stats(stats)


def tolerance_words(option: str, value: float | Mapping[str, float]) -> tuple[str, ...]:
    """Tolerances as words of ``biopsy run``; none for the usual ones."""
    given = value if isinstance(value, Mapping) else {"": value}
    if given == {"": DEFAULT_TOLERANCE}:
        return ()
    return (option, *(f"{name}:{number!r}" if name else repr(number) for name, number in given.items()))


def _result(given: RunnerResult | Feed, name: str) -> RunnerResult:
    if isinstance(given, RunnerResult):
        return given
    require_arrays(name, given)
    return RunnerResult(name, (Iteration(given),))
