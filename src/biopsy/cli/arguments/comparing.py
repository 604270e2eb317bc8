"""Options that say what must hold of outputs: golden values, tolerances, limits of other figures; and the values by
name (shapes, tolerances, ranges) that options take.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from biopsy import errors
from biopsy.cli.arguments.declared import Options, option
from biopsy.comparison.tolerance import DEFAULT_LIMITS

if TYPE_CHECKING:
    from biopsy.comparison.tolerance import Metric, MetricLimits, Stat, Stats, Tolerances, TopK
    from biopsy.model.tensor_type import Dim, Shape

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


class ToleranceOptions(Options):
    """The tolerances, and what of the error is held against them."""

    atol: Sequence[str] | None = option(
        "--atol",
        "--abs-tol",
        "--absolute-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        meaning="largest absolute difference allowed, for all outputs or one of them (default: 1e-5; 0 for integers "
        "and booleans)",
    )
    rtol: Sequence[str] | None = option(
        "--rtol",
        "--rel-tol",
        "--relative-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        meaning="largest difference allowed relative to the expected value, for all outputs or one of them (default: "
        "1e-5; for integers only by name)",
    )
    check_error_stat: Sequence[str] | None = option(
        "--check-error-stat",
        nargs="+",
        metavar="[OUTPUT:]STAT",
        meaning="what the tolerances apply to: elemwise, max, mean, median or quantile (default: elemwise)",
    )
    error_quantile: Sequence[str] | None = option(
        "--error-quantile",
        nargs="+",
        metavar="[OUTPUT:]Q",
        meaning="the quantile for 'quantile', 0 to 1 (default: 0.99)",
    )

    def tolerances(self) -> Tolerances:
        """The tolerances by output. Raises UsageError for words that are none."""
        from biopsy.comparison.tolerance import Tolerances

        return Tolerances(parse_tolerances(self.atol, "--atol"), parse_tolerances(self.rtol, "--rtol"))

    def stats(self) -> Stats:
        """What is held against them. Raises UsageError for words that are none."""
        from biopsy.comparison.tolerance import Stats

        return Stats(parse_stats(self.check_error_stat), parse_quantiles(self.error_quantile))


def _limit(*spellings: str, metavar: str, meaning: str) -> Any:
    return option(*spellings, nargs="+", metavar=metavar, meaning=meaning)


class MetricOptions(Options):
    """The limits of other figures than the tolerances'."""

    cosine: Sequence[str] | None = _limit(
        "--cosine", "--cosine-similarity-threshold", metavar="[OUTPUT:]LEAST", meaning="cosine similarity, -1 to 1"
    )
    psnr: Sequence[str] | None = _limit(
        "--psnr",
        "--psnr-threshold",
        "--psnr-tolerance",
        metavar="[OUTPUT:]LEAST",
        meaning="peak signal-to-noise ratio, in dB",
    )
    snr: Sequence[str] | None = _limit(
        "--snr", "--snr-threshold", "--snr-tolerance", metavar="[OUTPUT:]LEAST", meaning="signal-to-noise ratio, in dB"
    )
    l2: Sequence[str] | None = _limit(
        "--l2", "--l2-threshold", "--l2-tolerance", metavar="[OUTPUT:]MOST", meaning="Euclidean distance"
    )
    ulp: Sequence[str] | None = _limit(
        "--ulp", metavar="[OUTPUT:]MOST", meaning="most representable values between the two (ULPs)"
    )
    top_k: Sequence[str] | None = _limit(
        "--top-k",
        "--postprocess",
        "--postprocess-func",
        metavar="[OUTPUT:]K[,axis=A]",
        meaning="compare the indices of the K greatest elements; 'top-K' means the same (axis: the last one by "
        "default)",
    )
    index_tolerance: Sequence[str] | None = _limit(
        "--index-tolerance", metavar="[OUTPUT:]MOST", meaning="how many places an index may move (default: 0)"
    )
    compare: Sequence[str] | None = _limit(
        "--compare",
        "--compare-func",
        metavar="NAME",
        meaning=f"the comparisons that every output must pass: {', '.join(_COMPARISONS)}; those without a limit of "
        f"yours have {', '.join(f'{name} {value:g}' for name, value in DEFAULT_LIMITS.items())} (default: those with a "
        "limit of yours, else simple: the tolerances)",
    )

    @classmethod
    def add_group(cls, parser: argparse.ArgumentParser) -> None:
        """Add them as the group of a command's options."""
        title = "limits on other measures, for all outputs or one of them; they replace the default tolerances"
        cls.add(parser.add_argument_group(title))

    def metric_limits(self) -> MetricLimits:
        """The limits asked for. Raises UsageError for words that are none."""
        from biopsy.comparison.tolerance import METRICS, MetricLimits

        values: dict[Metric, dict[str, float]] = {}
        for metric, words, example in (
            ("cosine", self.cosine, "0.999 out:0.99"),
            ("psnr", self.psnr, "30 out:40"),
            ("snr", self.snr, "20 out:30"),
            ("l2", self.l2, "1e-5 out:1e-3"),
            ("ulp", self.ulp, "4 out:100"),
            ("indices", self.index_tolerance, "0 out:2"),
        ):
            assert metric in METRICS
            if words:
                option = "--index-tolerance" if metric == "indices" else f"--{metric}"
                values[metric] = by_name(
                    words, option, example, partial(number_from, least=-1 if metric == "cosine" else 0)
                )
        tops = by_name(self.top_k, "--top-k", "5 out:3,axis=1", _top)
        return MetricLimits(values, tops, _chosen(self.compare, bool(tops)))


class JudgeOptions(ToleranceOptions, MetricOptions):
    """What counts as equal."""

    def limits(self) -> tuple[Tolerances, Stats, MetricLimits]:
        """What outputs are held against. Raises UsageError for words that are no limits."""
        return self.tolerances(), self.stats(), self.metric_limits()


def _chosen(words: Sequence[str] | None, ranked: bool) -> frozenset[str] | None:
    from biopsy.text import did_you_mean

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
    from biopsy.comparison.tolerance import TopK

    count, _, axis = text.removeprefix("top-").partition(",axis=")
    if not count.isdecimal() or not int(count):
        raise ValueError(f"{text!r} is not a number of elements")
    return TopK(int(count), int(axis) if axis else -1)


# Values by name, from the words of an option: shapes, sizes, tolerances, ranges, and the script that makes inputs.
#
# Every function takes the words of one option (None where it was not given) and raises UsageError that names the
# option and shows an example. A name ends at the last colon that can end one, so names may hold ``:`` and ``/``.

Value = TypeVar("Value")


def parse_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int, ...]]:
    """``x:[1,3,224,224] y:[2]`` -> shapes by name, all dimensions known; ``x:[]`` is a scalar's."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parse_symbolic_shapes(words, option).items():
        known = tuple(dim for dim in shape if isinstance(dim, int))
        if len(known) < len(shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", "x:[1,3,224,224] y:[2]")
        shapes[name] = known
    return shapes


def parse_open_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int | None, ...]]:
    """As ``parse_shapes``, and a dimension may be -1 for what the model says, else 1 (None)."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, shape in parse_symbolic_shapes(words, option).items():
        if any(isinstance(dim, str) for dim in shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", "x:[1,3,224,224] y:[2]")
        shapes[name] = tuple(dim for dim in shape if not isinstance(dim, str))
    return shapes


def parse_symbolic_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, Shape]:
    """As ``parse_shapes``, and a dimension may be a symbol (``N`` or ``'N'``), or -1 for an unknown size (None)."""
    shapes: dict[str, Shape] = {}
    for word in words or ():
        name, found, text = word.rpartition(":[")
        if not found or not name or not text.endswith("]"):
            raise _wrong(option, word, "a name and a shape are needed", "x:[1,3,224,224] y:[2]")
        dims = [dim.strip() for dim in text[:-1].split(",")] if text[:-1].strip() else []
        shapes[name] = tuple(_dim(option, word, dim) for dim in dims)
    return shapes


def parse_symbols(words: Sequence[str] | None, option: str = "--input-symbols") -> dict[str, int]:
    """``N=8 length=128`` -> sizes by name; commas may stand for spaces."""
    sizes: dict[str, int] = {}
    for word in ",".join(words or ()).split(",") if words else ():
        name, found, text = word.rpartition("=")
        if not found or not name or not text.isdecimal():
            raise _wrong(option, word, "a name and a size are needed", "N=8 length=128")
        sizes[name] = int(text)
    return sizes


def _dim(option: str, word: str, text: str) -> Dim:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if quoted and text[1:-1]:
        return text[1:-1]
    if text.isdecimal():
        return int(text)
    if text == "-1":
        return None
    if not text.isidentifier():
        raise _wrong(option, word, f"{text!r} is no dimension", "x:[1,3,224,224] y:[2]")
    return text


def parse_tolerances(words: Sequence[str] | None, option: str = "--atol") -> dict[str, float]:
    """``1e-3 out:1e-5`` -> tolerances by name, "" for all outputs that are not named."""
    return by_name(words, option, "1e-3 out:1e-5", _tolerance)


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no tolerance: it must be a number, 0 or more")
    return value


def parse_quantiles(words: Sequence[str] | None, option: str = "--error-quantile") -> dict[str, float]:
    """``0.99 out:0.5`` -> quantiles by name, "" for all outputs that are not named."""
    return by_name(words, option, "0.99 out:0.5", _quantile)


def _quantile(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is no quantile: it must lie between 0 and 1")
    return value


def parse_stats(words: Sequence[str] | None, option: str = "--check-error-stat") -> dict[str, Stat]:
    """``max out:mean`` -> statistics by name, "" for all outputs that are not named."""
    return by_name(words, option, "max out:mean", _stat)


def _stat(text: str) -> Stat:
    from biopsy.comparison.tolerance import STATS

    for stat in STATS:
        if text == stat:
            return stat
    raise ValueError(f"{text!r} is none of {', '.join(STATS)}")


def parse_ranges(words: Sequence[str] | None, option: str = "--val-range") -> dict[str, tuple[float, float]]:
    """``[0,1] x:[2,5]`` -> (least, greatest) by name, "" for all inputs that are not named."""
    return by_name(words, option, "[0,1] x:[2,5]", _range)


def _range(text: str) -> tuple[float, float]:
    ends = [float(end) for end in text[1:-1].split(",")] if text[:1] + text[-1:] == "[]" else []
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or ends[0] > ends[1]:
        raise ValueError(f"{text!r} is no range: it needs two numbers, the smaller one first")
    return ends[0], ends[1]


def by_name(words: Sequence[str] | None, option: str, example: str, parse: Callable[[str], Value]) -> dict[str, Value]:
    """``[NAME:]VALUE`` words -> values by name, "" for all that are not named; names may hold colons."""
    values = {}
    for word in words or ():
        name, colon, text = word.rpartition(":")
        try:
            if colon and not name:
                raise ValueError("there is no name before the colon")
            values[name] = parse(text)
        except ValueError as error:
            why = f"{text!r} is no number" if "could not convert" in str(error) else str(error)
            raise _wrong(option, word, why, example) from error
    return values


def parse_script(word: str, default: str = "load_data") -> tuple[Path, str]:
    """``FILE.py[:function]`` -> (path, name of the function). A drive letter is no function."""
    path, colon, function = word.rpartition(":")
    if colon and function.isidentifier() and path:
        return Path(path), function
    return Path(word), default


def _wrong(option: str, word: str, why: str, example: str) -> errors.UsageError:
    return errors.UsageError(f"{option} {word}: {why}", next_steps=[f"{option} {example}"])
