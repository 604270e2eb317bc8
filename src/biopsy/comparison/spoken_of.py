"""Which outputs are spoken of by name, and whether there are such outputs: a tolerance for a misspelt one is none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
from biopsy.model.known_names import require_known
from biopsy.tensors.results import RunnerResult


def spoken_of(tolerances: Tolerances, stats: Stats, limits: MetricLimits | None = None) -> dict[str, Iterable[str]]:
    """The names that are given, by the option of ``biopsy run`` that gives them."""
    limits = limits or MetricLimits()
    found: dict[str, Iterable[str]] = {
        "--atol": tolerances.atol,
        "--rtol": tolerances.rtol,
        "--check-error-stat": stats.stat,
        "--error-quantile": stats.quantile,
        "--top-k": limits.tops,
    }
    options = {metric: "--index-tolerance" if metric == "indices" else f"--{metric}" for metric in limits.values}
    return found | {options[metric]: values for metric, values in limits.values.items()}


def require_known_outputs(
    given: Mapping[str, Iterable[str]], known: Collection[str], outputs: Collection[str] | None = None
) -> None:
    """Raise DoesNotFit for the first name, by option, that is not known, listing ``outputs``; see ``require_known``."""
    for option, names in given.items():
        require_known(option, "output", names, known, outputs)


def names_of(result: RunnerResult) -> set[str]:
    """The outputs of a runner, in any iteration."""
    return {name for iteration in result.iterations for name in iteration.outputs}
