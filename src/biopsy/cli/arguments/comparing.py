"""Options that say what must hold of outputs: golden values, tolerances, limits of other figures.

Nothing here imports NumPy, as in ``groups``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from biopsy import errors
from biopsy.cli.arguments import file_kinds, types
from biopsy.cli.arguments.groups import SAVED_FORMATS
from biopsy.cli.arguments.named_values import by_name
from biopsy.comparison.tolerance import DEFAULT_LIMITS, METRICS, Metric, MetricLimits, TopK
from biopsy.similar_names import did_you_mean

_COMPARISONS: dict[str, frozenset[str]] = {
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
"""What ``--compare`` takes, as Polygraphy spells it -> the metrics, "simple" for the tolerances."""


def add_comparing(parser: argparse.ArgumentParser) -> None:
    """Golden values, tolerances and what of the error is held against them."""
    group = parser.add_argument_group("outputs and comparison")
    group.add_argument(
        "--save-outputs",
        "--save-results",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help=f"save the outputs of every engine: {SAVED_FORMATS}",
    )
    group.add_argument(
        "--load-outputs",
        "--load-results",
        nargs="+",
        type=file_kinds.READ,
        metavar="FILE",
        help="compare every engine, the first one too, with all of these golden values",
    )
    add_tolerances(group)
    group.add_argument("--validate", action="store_true", help="fail if an output holds NaN or infinity")
    group.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    group.add_argument(
        "--warm-up",
        type=types.count,
        default=0,
        metavar="N",
        help="runs before the first one that is timed (default: 0)",
    )


def add_tolerances(group: argparse._ArgumentGroup) -> None:
    """The tolerances, and what of the error is held against them."""
    tolerance = "for all outputs or one of them (default: 1e-5"
    group.add_argument(
        "--atol",
        "--abs-tol",
        "--absolute-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        help=f"largest absolute difference allowed, {tolerance}; 0 for integers and booleans)",
    )
    group.add_argument(
        "--rtol",
        "--rel-tol",
        "--relative-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        help=f"largest difference allowed relative to the expected value, {tolerance}; for integers only by name)",
    )
    group.add_argument(
        "--check-error-stat",
        nargs="+",
        metavar="[OUTPUT:]STAT",
        help="what the tolerances apply to: elemwise, max, mean, median or quantile (default: elemwise)",
    )
    group.add_argument(
        "--error-quantile",
        nargs="+",
        metavar="[OUTPUT:]Q",
        help="the quantile for 'quantile', 0 to 1 (default: 0.99)",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The limits of other figures than the tolerances'."""
    group = parser.add_argument_group(
        "limits on other measures, for all outputs or one of them; they replace the default tolerances"
    )
    least = "[OUTPUT:]LEAST"
    most = "[OUTPUT:]MOST"
    group.add_argument(
        "--cosine", "--cosine-similarity-threshold", nargs="+", metavar=least, help="cosine similarity, -1 to 1"
    )
    group.add_argument(
        "--psnr",
        "--psnr-threshold",
        "--psnr-tolerance",
        nargs="+",
        metavar=least,
        help="peak signal-to-noise ratio, in dB",
    )
    group.add_argument(
        "--snr", "--snr-threshold", "--snr-tolerance", nargs="+", metavar=least, help="signal-to-noise ratio, in dB"
    )
    group.add_argument("--l2", "--l2-threshold", "--l2-tolerance", nargs="+", metavar=most, help="Euclidean distance")
    group.add_argument("--ulp", nargs="+", metavar=most, help="most representable values between the two (ULPs)")
    group.add_argument(
        "--top-k",
        "--postprocess",
        "--postprocess-func",
        nargs="+",
        metavar="[OUTPUT:]K[,axis=A]",
        help="compare the indices of the K greatest elements; 'top-K' means the same (axis: the last one by default)",
    )
    group.add_argument(
        "--index-tolerance", nargs="+", metavar=most, help="how many places an index may move (default: 0)"
    )
    _add_comparisons(group)


def _add_comparisons(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--compare",
        "--compare-func",
        nargs="+",
        metavar="NAME",
        help=f"the comparisons that every output must pass: {', '.join(_COMPARISONS)}; those without a limit of yours "
        f"have {', '.join(f'{name} {value:g}' for name, value in DEFAULT_LIMITS.items())} (default: those with a "
        "limit of yours, else simple: the tolerances)",
    )


def limits_of(args: argparse.Namespace) -> MetricLimits:
    """The limits asked for. Raises UsageError for words that are none."""
    values: dict[Metric, dict[str, float]] = {}
    for metric, words, example in (
        ("cosine", args.cosine, "0.999 out:0.99"),
        ("psnr", args.psnr, "30 out:40"),
        ("snr", args.snr, "20 out:30"),
        ("l2", args.l2, "1e-5 out:1e-3"),
        ("ulp", args.ulp, "4 out:100"),
        ("indices", args.index_tolerance, "0 out:2"),
    ):
        assert metric in METRICS
        if words:
            option = "--index-tolerance" if metric == "indices" else f"--{metric}"
            values[metric] = by_name(
                words, option, example, partial(number_from, least=-1 if metric == "cosine" else 0)
            )
    tops = by_name(args.top_k, "--top-k", "5 out:3,axis=1", _top)
    return MetricLimits(values, tops, _chosen(args.compare, bool(tops)))


def _chosen(words: Sequence[str] | None, ranked: bool) -> frozenset[str] | None:
    if not words:
        return None
    unknown = [word for word in words if word not in _COMPARISONS]
    if unknown:
        raise errors.UsageError(
            f"--compare {unknown[0]}: there is no such comparison; there are {', '.join(_COMPARISONS)}",
            next_steps=did_you_mean(unknown[0], _COMPARISONS, most=1),
        )
    found = frozenset[str]().union(*(_COMPARISONS[word] for word in words))
    # Polygraphy compares what is left after --postprocess with the tolerances: of indices, that they are equal.
    return found - {"simple"} | {"indices"} if ranked else found


def number_from(text: str, least: float) -> float:
    """A number that is ``least`` or more. Raises ValueError."""
    value = float(text)
    if not value >= least:
        raise ValueError(f"{text!r} is too small: it must be {least:g} or more")
    return value


def _top(text: str) -> TopK:
    count, _, axis = text.removeprefix("top-").partition(",axis=")
    if not count.isdecimal() or not int(count):
        raise ValueError(f"{text!r} is not a number of elements")
    return TopK(int(count), int(axis) if axis else -1)
