"""Options for comparing outputs: golden values, tolerances, other metrics, and noise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, several, switch
from biopsy.cli.arguments.types import by_name, number
from biopsy.comparison.tolerance import DEFAULT_LIMITS, STATS, Metric, MetricLimits, Stat, Stats, Tolerances, TopK
from biopsy.text import did_you_mean


def _stat(text: str) -> Stat:
    stat = next((stat for stat in STATS if stat == text), None)
    if stat is None:
        raise ValueError(f"{text!r} is none of {', '.join(STATS)}")
    return stat


def _top(text: str) -> TopK:
    count, _, axis = text.removeprefix("top-").partition(",axis=")
    if not count.isdecimal() or not int(count):
        raise ValueError(f"{text!r} is not a number of elements")
    return TopK(int(count), int(axis) if axis else -1)


def parse_tolerances(words: Sequence[str] | None, option: str = "--atol") -> dict[str, float]:
    """``1e-3 out:1e-5`` -> tolerances by name, "" for all other outputs."""
    wrong = "is not a tolerance: it must be a number, 0 or more"
    return by_name(words, option, "1e-3 out:1e-5", partial(number, least=0, most=sys.float_info.max, wrong=wrong))


def parse_quantiles(words: Sequence[str] | None, option: str = "--error-quantile") -> dict[str, float]:
    """``0.99 out:0.5`` -> quantiles by name, "" for all other outputs."""
    wrong = "is not a quantile: it must lie between 0 and 1"
    return by_name(words, option, "0.99 out:0.5", partial(number, least=0, most=1, wrong=wrong))


def parse_stats(words: Sequence[str] | None, option: str = "--check-error-stat") -> dict[str, Stat]:
    """``max out:mean`` -> statistics by name, "" for all other outputs."""
    return by_name(words, option, "max out:mean", _stat)


def _limit(*spellings: str, metavar: str, meaning: str, **settings: Any) -> Any:
    """A field for limits by output name. By default, greater is looser, and a project's file may set it."""
    defaults: dict[str, Any] = {"shared": True, "decides": "the greater, the looser", **settings}
    return several(*spellings, metavar=f"[OUTPUT:]{metavar}", meaning=meaning, **defaults)


class ToleranceOptions(Options, title="what is out of tolerance"):
    """The tolerances, and the statistic of the error that they limit."""

    atol: Sequence[str] | None = _limit(
        "--atol --abs-tol --absolute-tolerance",
        metavar="VALUE",
        meaning="largest absolute difference allowed, for all outputs or one of them (default: 1e-5; 0 for integers "
        "and booleans)",
    )
    rtol: Sequence[str] | None = _limit(
        "--rtol --rel-tol --relative-tolerance",
        metavar="VALUE",
        meaning="largest difference allowed relative to the expected value, for all outputs or one of them (default: "
        "1e-5; for integers only by name)",
    )
    check_error_stat: Sequence[str] | None = _limit(
        "--check-error-stat",
        metavar="STAT",
        meaning="what the tolerances apply to: elemwise, max, mean, median or quantile (default: elemwise)",
    )
    error_quantile: Sequence[str] | None = _limit(
        "--error-quantile",
        metavar="Q",
        meaning="the quantile for 'quantile', 0 to 1 (default: 0.99)",
        decides="the smaller, the looser",
    )

    def tolerances(self) -> Tolerances:
        """The tolerances by output. Raises UsageError for invalid words."""
        return Tolerances(parse_tolerances(self.atol), parse_tolerances(self.rtol, "--rtol"))

    def stats(self) -> Stats:
        """The statistics that the tolerances limit. Raises UsageError for invalid words."""
        return Stats(parse_stats(self.check_error_stat), parse_quantiles(self.error_quantile))


COMPARISONS: Mapping[str, frozenset[str]] = {
    "simple": frozenset({"simple"}),
    "l2": frozenset({"l2"}),
    "cosine_similarity": frozenset({"cosine"}),
    "distance_metrics": frozenset({"l2", "cosine"}),
    "psnr": frozenset({"psnr"}),
    "snr": frozenset({"snr"}),
    "quality_metrics": frozenset({"psnr", "snr"}),
    "ulp": frozenset({"ulp"}),
    "indices": frozenset({"indices"}),
}
"""Names that ``--compare`` takes, as in Polygraphy -> metrics; "simple" stands for the tolerances."""

_METRICS: Mapping[Metric, tuple[str, str]] = {
    "cosine": ("--cosine", "0.999 out:0.99"),
    "psnr": ("--psnr", "30 out:40"),
    "snr": ("--snr", "20 out:30"),
    "l2": ("--l2", "1e-5 out:1e-3"),
    "ulp": ("--ulp", "4 out:100"),
    "indices": ("--index-tolerance", "0 out:2"),
}
"""The option of each metric's limit, and an example."""


class MetricOptions(
    Options, title="limits on other measures, for all outputs or one of them; they replace the default tolerances"
):
    """Limits on metrics other than absolute and relative errors."""

    cosine: Sequence[str] | None = _limit(
        "--cosine --cosine-similarity-threshold",
        metavar="LEAST",
        meaning="cosine similarity, -1 to 1",
        decides="the smaller, the looser",
    )
    psnr: Sequence[str] | None = _limit(
        "--psnr --psnr-threshold --psnr-tolerance",
        metavar="LEAST",
        meaning="peak signal-to-noise ratio, in dB",
        decides="the smaller, the looser",
    )
    snr: Sequence[str] | None = _limit(
        "--snr --snr-threshold --snr-tolerance",
        metavar="LEAST",
        meaning="signal-to-noise ratio, in dB",
        decides="the smaller, the looser",
    )
    l2: Sequence[str] | None = _limit(
        "--l2 --l2-threshold --l2-tolerance", metavar="MOST", meaning="Euclidean distance"
    )
    ulp: Sequence[str] | None = _limit(
        "--ulp", metavar="MOST", meaning="most representable values between the two (ULPs)"
    )
    top_k: Sequence[str] | None = _limit(
        "--top-k --postprocess --postprocess-func",
        metavar="K[,axis=A]",
        meaning="compare the indices of the K greatest elements; 'top-K' means the same (axis: the last one by "
        "default)",
        shared=False,
        decides="yes",
    )
    index_tolerance: Sequence[str] | None = _limit(
        "--index-tolerance",
        metavar="MOST",
        meaning="how many places an index may move (default: 0)",
        shared=False,
        decides="yes",
    )
    compare: Sequence[str] | None = several(
        "--compare --compare-func",
        metavar="NAME",
        meaning=f"the comparisons that every output must pass: {', '.join(COMPARISONS)}; their default limits are "
        f"{', '.join(f'{name} {value:g}' for name, value in DEFAULT_LIMITS.items())} (default: the comparisons that "
        "you set limits for, else simple: the tolerances)",
        decides="yes",
    )

    def metric_limits(self) -> MetricLimits:
        """The limits that were given. Raises UsageError for invalid words."""
        given = self.given(MetricOptions.declared)
        values = {
            metric: by_name(given[option], option, example, partial(number, least=-1 if metric == "cosine" else 0))
            for metric, (option, example) in _METRICS.items()
            if option in given
        }
        tops = by_name(self.top_k, "--top-k", "5 out:3,axis=1", _top)
        if not self.compare:
            return MetricLimits(values, tops, None)
        unknown = next((name for name in self.compare if name not in COMPARISONS), None)
        if unknown is not None:
            raise errors.UsageError(
                f"--compare {unknown}: there is no such comparison; there are {', '.join(COMPARISONS)}",
                next_steps=did_you_mean(unknown, COMPARISONS, most=1),
            )
        chosen = frozenset[str]().union(*(COMPARISONS[name] for name in self.compare))
        # As in Polygraphy, "simple" after --top-k means that the indices must be equal.
        return MetricLimits(values, tops, chosen - {"simple"} | {"indices"} if tops else chosen)


class JudgeOptions(ToleranceOptions, MetricOptions):
    """Limits for the comparison of outputs."""

    def limits(self) -> tuple[Tolerances, Stats, MetricLimits]:
        """All limits. Raises UsageError for invalid words."""
        return self.tolerances(), self.stats(), self.metric_limits()


class OutputOptions(Options, title="outputs and comparison"):
    """Golden values, and the file for the outputs of the engines."""

    save_outputs: Path | None = option(
        "--save-outputs --save-results",
        type=types.WRITTEN,
        meaning=f"save the outputs of every engine: {types.SAVED_FORMATS}",
    )
    load_outputs: Sequence[Path] | None = several(
        "--load-outputs --load-results",
        type=types.READ,
        meaning="compare every engine, the first one too, with all of these golden values",
        decides="yes",
    )


class RunningOptions(Options, title="outputs and comparison"):
    """Further tests of outputs, and how runs are made."""

    validate: bool = switch("--validate", meaning="fail if an output holds NaN or infinity", shared=True)
    fail_fast: bool = switch("--fail-fast", meaning="stop at the first failure")
    warm_up: int = option(
        "--warm-up", type=types.count, default=0, meaning="runs before the first one that is timed (default: 0)"
    )


class NoiseOptions(Options, title="a bug, or only rounding"):
    """Whether a difference is a bug or only rounding."""

    compare_with: Literal["noise"] | None = option(
        "--compare-with",
        choices=("noise",),
        meaning="noise: instead of comparing engines with each other, compare the error of each with the error of "
        "a plain run (ONNX Runtime with its optimizer off), both measured against a float64 run",
        decides="yes",
    )
    noise_ratio: Sequence[str] | None = _limit(
        "--noise-ratio",
        metavar="TIMES",
        meaning="an error up to this many times that of a plain run counts as rounding (default: 10)",
    )
    tell_rounding: bool = switch("--tell-rounding", meaning=argparse.SUPPRESS)  # for checks of debug reduce
    tell_slow_tensors: bool = switch("--tell-slow-tensors", meaning=argparse.SUPPRESS)  # the same

    def noise_ratios(self) -> dict[str, float]:
        """The largest multiple of a plain run's error that counts as rounding, by output name."""
        return by_name(self.noise_ratio, "--noise-ratio", "10 out:100", partial(number, least=1))
