"""The criteria of a comparison, by output: tolerances, the statistic compared with them, and limits of metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, get_args

from biopsy.model.known_names import require_known
from biopsy.tensors.results import Array, RunnerResult

Stat: TypeAlias = Literal["elemwise", "max", "mean", "median", "quantile"]
"""The statistic that is compared with the tolerances.

``elemwise``: every element must satisfy |actual - expected| <= atol + rtol * |expected|, as in
numpy.testing.assert_allclose. Others: the statistic of the absolute errors must be <= atol, or that of the relative
errors <= rtol.
"""

STATS: tuple[Stat, ...] = get_args(Stat)

Metric: TypeAlias = Literal["l2", "cosine", "psnr", "snr", "ulp", "indices"]
"""A metric with a limit of its own (see differences.py).

``l2``, ``ulp`` (the greatest distance of any element) and ``indices`` (the places that an index may move) must be at
most the limit; ``cosine``, and ``psnr`` and ``snr`` in dB, at least.
"""

METRICS: tuple[Metric, ...] = get_args(Metric)

AT_LEAST: frozenset[Metric] = frozenset({"cosine", "psnr", "snr"})
"""Metrics that must not be below their limit; the others must not be above it."""

STRICTEST: Mapping[Metric, float] = {
    "l2": 0.0, "cosine": 1.0, "psnr": math.inf, "snr": math.inf, "ulp": 0.0, "indices": 0.0,
}  # fmt: skip
"""The values of equal tensors. As a limit, only equal tensors pass (for "ulp": equal in the less precise type)."""

DEFAULT_LIMITS: Mapping[Metric, float] = {
    "l2": 1e-5, "cosine": 0.997, "psnr": 30.0, "snr": 20.0, "ulp": 4.0, "indices": 0.0,
}  # fmt: skip
"""Limits of metrics by default: Polygraphy's, and 4 for ULP, which it does not have."""

DEFAULT_TOLERANCE = 1e-5
DEFAULT_QUANTILE = 0.99


@dataclass(frozen=True)
class Tolerance:
    """The tolerances of one output: ``atol`` in the output's unit, ``rtol`` relative to the expected value."""

    atol: float = DEFAULT_TOLERANCE
    rtol: float = DEFAULT_TOLERANCE


@dataclass(frozen=True)
class Tolerances:
    """Tolerances by output name; "" is for all other outputs, and 1e-5 the default.

    Integers and booleans are compared exactly, since they may be indices, identifiers or flags, unless an ``atol`` (for
    all outputs or by name) or an ``rtol`` by name allows more.
    """

    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)

    def for_output(self, name: str) -> Tolerance:
        """The tolerances of an output."""
        return Tolerance(
            self.atol.get(name, self.atol.get("", DEFAULT_TOLERANCE)),
            self.rtol.get(name, self.rtol.get("", DEFAULT_TOLERANCE)),
        )


@dataclass(frozen=True)
class Stats:
    """The statistic that decides, and the quantile for "quantile", by output name; "" as in Tolerances."""

    stat: Mapping[str, Stat] = field(default_factory=dict)
    quantile: Mapping[str, float] = field(default_factory=dict)

    def for_output(self, name: str) -> tuple[Stat, float]:
        """The statistic and the quantile (0 to 1) of an output."""
        return (
            self.stat.get(name, self.stat.get("", "elemwise")),
            self.quantile.get(name, self.quantile.get("", DEFAULT_QUANTILE)),
        )


@dataclass(frozen=True)
class TopK:
    """The ``k`` greatest elements along ``axis``, such as classes by score. ``k`` may exceed the length of the axis."""

    k: int
    axis: int = -1


@dataclass(frozen=True)
class Limit:
    """The limit of one metric for one output.

    ``top``: compare the indices of the greatest elements; None: the elements are indices themselves.
    """

    metric: Metric
    value: float
    top: TopK | None = None


@dataclass(frozen=True)
class MetricLimits:
    """Limits of metrics by output name, "" as in Tolerances; ``tops`` says which ranks of an output are compared.

    ``chosen`` are the metrics that decide for every output; it contains "simple" if the tolerances decide, too. If it
    is None, the most specific setting wins (see ``criteria_for``).
    """

    values: Mapping[Metric, Mapping[str, float]] = field(default_factory=dict)
    tops: Mapping[str, TopK] = field(default_factory=dict)
    chosen: frozenset[str] | None = None

    def limit(self, metric: Metric, name: str) -> Limit:
        """The limit of a metric for an output, or the default one."""
        values = self.values.get(metric, {})
        value = values.get(name, values.get("", DEFAULT_LIMITS[metric]))
        top = self.tops.get(name, self.tops.get("")) if metric == "indices" else None
        return Limit(metric, value, top)

    def named(self, name: str) -> list[Metric]:
        """The metrics with a setting for ``name`` ("": for all other outputs)."""
        ranked = {"indices"} if name in self.tops else set()
        return [metric for metric in METRICS if metric in ranked or name in self.values.get(metric, {})]


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """The criteria of one output. ``tolerances_decide``: whether the tolerances decide, besides the ``limits``.

    ``integers`` are the tolerances for expected integers or booleans.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    integers: Tolerance = field(default_factory=partial(Tolerance, 0.0, 0.0))
    stat: Stat = "elemwise"
    quantile: float = DEFAULT_QUANTILE
    limits: tuple[Limit, ...] = ()
    tolerances_decide: bool = True

    def tolerance_of(self, expected: Array) -> Tolerance:
        """The tolerances for an expected value, by its type."""
        return self.integers if is_exact_by_default(expected.dtype.name) else self.tolerance


def is_exact_by_default(dtype: str) -> bool:
    """Whether values of a type, by its name, are compared exactly unless a tolerance is given: integers, booleans."""
    return dtype.startswith(("int", "uint", "bool"))


def criteria_for(name: str, tolerances: Tolerances, stats: Stats, limits: MetricLimits) -> Criteria:
    """The criteria of an output.

    The most specific settings win: only those for this output by name, if there are any; else those for all outputs;
    else the default tolerances.
    """
    stat, quantile = stats.for_output(name)
    if limits.chosen is not None:
        metrics: list[Metric] = [metric for metric in METRICS if metric in limits.chosen]
        decide = "simple" in limits.chosen
    else:
        metrics, decide = limits.named(name), _is_set(name, tolerances, stats)
        if not metrics and not decide:
            metrics = limits.named("")
            decide = not metrics or _is_set("", tolerances, stats)
    return Criteria(
        tolerance=tolerances.for_output(name),
        integers=Tolerance(tolerances.atol.get(name, tolerances.atol.get("", 0.0)), tolerances.rtol.get(name, 0.0)),
        stat=stat,
        quantile=quantile,
        limits=tuple(limits.limit(metric, name) for metric in metrics),
        tolerances_decide=decide,
    )


def _is_set(name: str, tolerances: Tolerances, stats: Stats) -> bool:
    return any(name in settings for settings in (tolerances.atol, tolerances.rtol, stats.stat))


def names_by_option(
    tolerances: Tolerances, stats: Stats, limits: MetricLimits | None = None
) -> dict[str, Iterable[str]]:
    """The output names in settings, by the option of ``biopsy run`` that sets them."""
    limits = limits or MetricLimits()
    names: dict[str, Iterable[str]] = {
        "--atol": tolerances.atol,
        "--rtol": tolerances.rtol,
        "--check-error-stat": stats.stat,
        "--error-quantile": stats.quantile,
        "--top-k": limits.tops,
    }
    options = {metric: "--index-tolerance" if metric == "indices" else f"--{metric}" for metric in limits.values}
    return names | {options[metric]: values for metric, values in limits.values.items()}


def require_known_outputs(
    given: Mapping[str, Iterable[str]], known: Collection[str], outputs: Collection[str] | None = None
) -> None:
    """Raise DoesNotFit for the first unknown name of an option, with a list of ``outputs``; see ``require_known``."""
    for option, names in given.items():
        require_known(option, "output", names, known, outputs)


def names_of(result: RunnerResult) -> set[str]:
    """The names of a runner's outputs in all iterations."""
    return {name for iteration in result.iterations for name in iteration.outputs}
