"""Options that only ``run`` has, and what they ask of outputs. NumPy is not imported: see ``arguments.groups``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from biopsy import errors
from biopsy.cli.arguments import file_kinds
from biopsy.cli.arguments.types import byte_size
from biopsy.comparison.tolerance import DEFAULT_LIMITS, METRICS, Limits, Metric, TopK

Value = TypeVar("Value")

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


def add(parser: argparse.ArgumentParser) -> None:
    """The limits of other figures than the tolerances', noise, what is built, report, memory."""
    add_limits(parser)
    group = parser.add_argument_group("a bug, or only rounding")
    group.add_argument(
        "--compare-with",
        choices=("noise",),
        help="noise: hold the error of each engine against a float64 run against the error of plain float32, instead "
        "of comparing engines with each other",
    )
    group.add_argument(
        "--noise-ratio",
        nargs="+",
        metavar="[OUTPUT:]TIMES",
        help="how many times the error of plain float32 still is rounding (default: 10)",
    )
    group.add_argument("--tell-rounding", action="store_true", help=argparse.SUPPRESS)  # debug reduce asks for it
    group = parser.add_argument_group("building")
    group.add_argument("--build-only", action="store_true", help="build the model in every engine, and run nothing")
    group.add_argument(
        "--save-engine",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="save what the engine has built that writes such files: .engine TensorRT, .blob OpenVINO, .ort ONNX "
        "Runtime; MODEL may be such a file too",
    )
    group = parser.add_argument_group("report and memory")
    group.add_argument(
        "--report", type=file_kinds.WRITTEN, metavar="FILE.json", help="write what was found as JSON too"
    )
    group.add_argument(
        "--memory-limit",
        type=byte_size,
        metavar="SIZE",
        help="keep at most so much of an engine's outputs in memory, such as 500MB: they are computed and saved in "
        "batches (--save-outputs must be .safetensors); the same command goes on where it was stopped",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The limits of other figures than the tolerances'."""
    group = parser.add_argument_group(
        "limits of other figures, for all outputs or one of them; these replace the default tolerances"
    )
    least = "[OUTPUT:]LEAST"
    most = "[OUTPUT:]MOST"
    group.add_argument(
        "--cosine", "--cosine-similarity-threshold", nargs="+", metavar=least, help="cosine similarity, -1 to 1"
    )
    group.add_argument(
        "--psnr", "--psnr-threshold", "--psnr-tolerance", nargs="+", metavar=least, help="peak signal to noise, in dB"
    )
    group.add_argument(
        "--snr", "--snr-threshold", "--snr-tolerance", nargs="+", metavar=least, help="signal to noise, in dB"
    )
    group.add_argument("--l2", "--l2-threshold", "--l2-tolerance", nargs="+", metavar=most, help="Euclidean distance")
    group.add_argument("--ulp", nargs="+", metavar=most, help="numbers of the type between any two elements")
    group.add_argument(
        "--top-k",
        "--postprocess",
        "--postprocess-func",
        nargs="+",
        metavar="[OUTPUT:]K[,axis=A]",
        help="compare the indices of the K greatest elements; 'top-K' is the same (axis: the last one by default)",
    )
    group.add_argument(
        "--index-tolerance", nargs="+", metavar=most, help="places that an index may have moved (default: 0)"
    )
    group.add_argument(
        "--compare",
        "--compare-func",
        nargs="+",
        metavar="NAME",
        help=f"which comparisons must hold for every output: {', '.join(_COMPARISONS)}; those without a limit have "
        f"{', '.join(f'{name} {value:g}' for name, value in DEFAULT_LIMITS.items())} (default: what limits are given "
        "for, else simple: the tolerances)",
    )


def limits_of(args: argparse.Namespace) -> Limits:
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
            values[metric] = _by_name(words, option, example, partial(_number, least=-1 if metric == "cosine" else 0))
    tops = _by_name(args.top_k or (), "--top-k", "5 out:3,axis=1", _top)
    return Limits(values, tops, _chosen(args.compare, bool(tops)))


def noise_ratios_of(args: argparse.Namespace) -> dict[str, float]:
    """How many times the error of plain float32 still is rounding, by output name."""
    return _by_name(args.noise_ratio or (), "--noise-ratio", "10 out:100", partial(_number, least=1))


def _chosen(words: Sequence[str] | None, ranked: bool) -> frozenset[str] | None:
    if not words:
        return None
    unknown = [word for word in words if word not in _COMPARISONS]
    if unknown:
        raise errors.UsageError(
            f"--compare {unknown[0]}: there is no such comparison; there are {', '.join(_COMPARISONS)}"
        )
    found = frozenset[str]().union(*(_COMPARISONS[word] for word in words))
    # Polygraphy compares what is left after --postprocess with the tolerances: of indices, that they are equal.
    return found - {"simple"} | {"indices"} if ranked else found


def _number(text: str, least: float) -> float:
    value = float(text)
    if not value >= least:
        raise ValueError(f"{text!r} is too small: it must be {least:g} or more")
    return value


def _top(text: str) -> TopK:
    count, _, axis = text.removeprefix("top-").partition(",axis=")
    if not count.isdecimal() or not int(count):
        raise ValueError(f"{text!r} is no number of elements")
    return TopK(int(count), int(axis) if axis else -1)


def _by_name(words: Sequence[str], option: str, example: str, parse: Callable[[str], Value]) -> dict[str, Value]:
    """Values by output name, "" for all that are not named; names may hold colons."""
    values = {}
    for word in words:
        name, colon, text = word.rpartition(":")
        try:
            if colon and not name:
                raise ValueError("there is no name before the colon")
            values[name] = parse(text)
        except ValueError as error:
            why = f"{text!r} is no number" if "could not convert" in str(error) else str(error)
            raise errors.UsageError(f"{option} {word}: {why}", next_steps=[f"{option} {example}"]) from error
    return values
