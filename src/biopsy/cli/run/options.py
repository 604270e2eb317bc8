"""Options that only ``run`` has. NumPy is not imported: see ``arguments.groups``."""

from __future__ import annotations

import argparse
from functools import partial

from biopsy.cli.arguments import file_kinds, groups
from biopsy.cli.arguments.comparing import number_from
from biopsy.cli.arguments.named_values import by_name
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.arguments.types import byte_size
from biopsy.cli.run import functions


def add(parser: argparse.ArgumentParser) -> None:
    """Noise, what is built, report, memory."""
    group = parser.add_argument_group("a bug, or only rounding")
    group.add_argument(
        "--compare-with",
        choices=("noise",),
        help="noise: instead of comparing engines with each other, compare the error of each, against a float64 run, "
        "with the error of plain float32",
    )
    group.add_argument(
        "--noise-ratio",
        nargs="+",
        metavar="[OUTPUT:]TIMES",
        help="how many times the error of plain float32 still counts as rounding (default: 10)",
    )
    group.add_argument("--tell-rounding", action="store_true", help=argparse.SUPPRESS)  # debug reduce asks for it
    functions.add(parser)
    _add_building(parser)
    group = parser.add_argument_group("report and memory")
    add_report(group)
    group.add_argument(
        "--record-memory",
        type=byte_size,
        metavar="SIZE",
        help="keep at most this much of an engine's outputs in memory, such as 500MB: they are computed and saved in "
        "batches (--save-outputs must be .safetensors); after an interruption, the same command continues",
    )


def _add_building(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("building")
    groups.add_model_type(group, or_engine=True)
    group.add_argument(
        "--save-onnx",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="save the model that is run, with the outputs that are returned",
    )
    groups.add_weights_file(group)
    groups.add_weights_threshold(group)
    group.add_argument("--build-only", action="store_true", help="build the model in every engine, but run nothing")
    group.add_argument(
        "--save-engine",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="save what the engine built: .engine (TensorRT), .xml or .blob (OpenVINO), .ort (ONNX Runtime); MODEL may "
        "be such a file, or with --model-type engine one without an ending",
    )


def noise_ratios_of(args: argparse.Namespace) -> dict[str, float]:
    """How many times the error of plain float32 still is rounding, by output name."""
    return by_name(args.noise_ratio, "--noise-ratio", "10 out:100", partial(number_from, least=1))
