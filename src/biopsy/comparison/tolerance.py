"""What is asked of two outputs: tolerances, the statistic held against them, limits of other figures, and which
outputs are meant by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, get_args

from biopsy.model.known_names import require_known
from biopsy.tensors.results import Array, RunnerResult

Stat: TypeAlias = Literal["elemwise", "max", "mean", "median", "quantile"]
"""What is compared with the tolerances.

``elemwise``: every element must satisfy |actual - expected| <= atol + rtol * |expected|, as in
numpy.testing.assert_allclose. The others: that statistic of the absolute errors must be <= atol, or that of the
relative errors <= rtol.
"""

STATS: tuple[Stat, ...] = get_args(Stat)

Metric: TypeAlias = Literal["l2", "cosine", "psnr", "snr", "ulp", "indices"]
"""A figure with a limit of its own (see differences.py).

At most the limit must be ``l2``, ``ulp`` (the greatest distance of any element), and how many places ``indices`` are
moved; at least the limit ``cosine``, and ``psnr`` and ``snr`` in dB.
"""

METRICS: tuple[Metric, ...] = get_args(Metric)

AT_LEAST: frozenset[Metric] = frozenset({"cosine", "psnr", "snr"})
"""Metrics that must not be below their limit; the others must not be above it."""

STRICTEST: Mapping[Metric, float] = {
    "l2": 0.0, "cosine": 1.0, "psnr": math.inf, "snr": math.inf, "ulp": 0.0, "indices": 0.0,
}  # fmt: skip
"""What equal tensors have, and no others where this is the limit (of "ulp": as numbers of the less precise type)."""

DEFAULT_LIMITS: Mapping[Metric, float] = {
    "l2": 1e-5, "cosine": 0.997, "psnr": 30.0, "snr": 20.0, "ulp": 4.0, "indices": 0.0,
}  # fmt: skip
"""Where a metric is asked for and no limit is given: Polygraphy's, and 4 ULP, since it has no such metric."""

DEFAULT_TOLERANCE = 1e-5
DEFAULT_QUANTILE = 0.99


@dataclass(frozen=True)
class Tolerance:
    """The tolerances of one output: ``atol`` in the output's unit, ``rtol`` as a fraction of the expected value."""

    atol: float = DEFAULT_TOLERANCE
    rtol: float = DEFAULT_TOLERANCE


@dataclass(frozen=True)
class Tolerances:
    """Tolerances by output name; "" stands for every output that is not named, else the default is 1e-5.

    Integers and booleans, which may be indices, identifiers or flags, are compared exactly unless an ``atol``, for all
    outputs or by name, or an ``rtol`` by name allows more: what rounds relative to its size is no such thing.
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
    """Which statistic decides, by output name, and which quantile where it is "quantile"; "" as in Tolerances."""

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
    """The ``k`` greatest elements along ``axis``, as of scores of classes. ``k`` is at most the length of the axis."""

    k: int
    axis: int = -1


@dataclass(frozen=True)
class Limit:
    """The limit of one metric for one output.

    ``top``: compare the indices of so many greatest elements; None: the elements are indices themselves.
    """

    metric: Metric
    value: float
    top: TopK | None = None


@dataclass(frozen=True)
class MetricLimits:
    """Limits of metrics by output name, "" as in Tolerances; ``tops``: how many ranks of an output are compared.

    ``chosen``: the metrics that hold for every output, and whether the tolerances do ("simple"), whatever was given for
    which output; None where nobody has chosen: then the most specific setting wins (see ``asked_of``).
    """

    values: Mapping[Metric, Mapping[str, float]] = field(default_factory=dict)
    tops: Mapping[str, TopK] = field(default_factory=dict)
    chosen: frozenset[str] | None = None

    def limit(self, metric: Metric, name: str) -> Limit:
        """The limit of a metric for an output, given or by default."""
        given = self.values.get(metric, {})
        value = given.get(name, given.get("", DEFAULT_LIMITS[metric]))
        top = self.tops.get(name, self.tops.get("")) if metric == "indices" else None
        return Limit(metric, value, top)

    def named(self, name: str) -> list[Metric]:
        """The metrics of which ``name`` is spoken ("": of every output)."""
        ranked = {"indices"} if name in self.tops else set()
        return [metric for metric in METRICS if metric in ranked or name in self.values.get(metric, {})]


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """All that is asked of one output. ``tolerances_decide``: whether the tolerances do, beside the ``limits``.

    ``integers`` are the tolerances if integers or booleans are expected.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    integers: Tolerance = field(default_factory=partial(Tolerance, 0.0, 0.0))
    stat: Stat = "elemwise"
    quantile: float = DEFAULT_QUANTILE
    limits: tuple[Limit, ...] = ()
    tolerances_decide: bool = True

    def tolerance_of(self, expected: Array) -> Tolerance:
        """The tolerances for what is expected."""
        integral = expected.dtype.kind in "iub" or (expected.dtype.kind == "V" and "int" in expected.dtype.name)
        return self.integers if integral else self.tolerance


def asked_of(name: str, tolerances: Tolerances, stats: Stats, limits: MetricLimits) -> Criteria:
    """What is asked of an output.

    The most specific setting wins. If any tolerance, statistic or limit is given for this output by name, what was
    given for it must hold and nothing else; else what was given for all outputs; else the default tolerances.
    """
    stat, quantile = stats.for_output(name)
    if limits.chosen is not None:
        metrics: list[Metric] = [metric for metric in METRICS if metric in limits.chosen]
        decide = "simple" in limits.chosen
    else:
        metrics, decide = limits.named(name), _speaks_of(name, tolerances, stats)
        if not metrics and not decide:
            metrics = limits.named("")
            decide = not metrics or _speaks_of("", tolerances, stats)
    return Criteria(
        tolerance=tolerances.for_output(name),
        integers=Tolerance(tolerances.atol.get(name, tolerances.atol.get("", 0.0)), tolerances.rtol.get(name, 0.0)),
        stat=stat,
        quantile=quantile,
        limits=tuple(limits.limit(metric, name) for metric in metrics),
        tolerances_decide=decide,
    )


def _speaks_of(name: str, tolerances: Tolerances, stats: Stats) -> bool:
    return any(name in words for words in (tolerances.atol, tolerances.rtol, stats.stat))


# Which outputs are spoken of by name, and whether there are such outputs: a tolerance for a misspelt one is none.


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
