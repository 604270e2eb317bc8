"""Options that only ``run`` has, and the functions of the user's that judge outputs or change them before. NumPy is
not imported: see ``arguments.groups``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import comparing, groups, types
from biopsy.cli.arguments.comparing import by_name, number_from
from biopsy.cli.arguments.types import byte_size
from biopsy.cli.report import add_report
from biopsy.tensors.results import RunnerResult

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.comparison.runs import ComparisonFunction
    from biopsy.tensors.user_script import Postprocessing


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
    add_functions(parser)
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
        type=types.WRITTEN,
        metavar="FILE",
        help="save the model that is run, with the outputs that are returned",
    )
    groups.add_weights_file(group)
    groups.add_weights_threshold(group)
    group.add_argument("--build-only", action="store_true", help="build the model in every engine, but run nothing")
    group.add_argument(
        "--save-engine",
        type=types.WRITTEN,
        metavar="FILE",
        help="save what the engine built: .engine (TensorRT), .xml or .blob (OpenVINO), .ort (ONNX Runtime); MODEL may "
        "be such a file, or with --model-type engine one without an ending",
    )


def noise_ratios_of(args: argparse.Namespace) -> dict[str, float]:
    """How many times the error of plain float32 still is rounding, by output name."""
    return by_name(args.noise_ratio, "--noise-ratio", "10 out:100", partial(number_from, least=1))


# Functions of the user's in ``biopsy run``: one that judges outputs, one that changes them before.

_COMPARE, _POSTPROCESS = "--compare-func-script", "--postprocess-func-script"
_DECIDES_ALONE = (
    "atol", "rtol", "check_error_stat", "error_quantile", "cosine", "psnr", "snr", "l2", "ulp", "top_k",
    "index_tolerance", "compare",
)  # fmt: skip
"""Options that mean nothing where a function judges."""


def add_functions(parser: argparse.ArgumentParser) -> None:
    """The options that name them."""
    group = parser.add_argument_group("functions of your own")
    group.add_argument(
        _COMPARE,
        type=types.READ_SCRIPT,
        metavar="FILE.py[:function]",
        help="a Python function that takes the outputs of an iteration and those expected, both as dictionaries, and "
        "returns True or False, or a dictionary of these by output; it decides alone (default: compare_outputs)",
    )
    group.add_argument(
        _POSTPROCESS,
        type=types.READ_SCRIPT,
        metavar="FILE.py[:function]",
        help="a Python function that takes the outputs of an iteration and returns those to compare; golden values "
        "pass through it too (default: postprocess_outputs)",
    )


def are_given(args: argparse.Namespace) -> bool:
    """Whether any is: such a run is no fork of a process that has loaded its files before."""
    return bool(args.compare_func_script or args.postprocess_func_script)


@dataclass(frozen=True)
class Functions:
    """The functions that were given."""

    compare: ComparisonFunction | None = None
    postprocess: Postprocessing | None = None

    def postprocessed(self, results: Sequence[RunnerResult]) -> list[RunnerResult]:
        """The results as they are to be compared."""
        return list(results) if self.postprocess is None else [self.postprocess(result) for result in results]


def functions_of(args: argparse.Namespace, console: Console) -> Functions:
    """Load the functions that were given, and warn of options that they make idle.

    Raises UsageError for a file or function that is not there, or an option that excludes them; DataError if the file
    raises anything.
    """
    if not are_given(args):
        return Functions()
    from biopsy.comparison.runs import ComparisonFunction
    from biopsy.tensors.user_script import Postprocessing, UserScript

    given = _COMPARE if args.compare_func_script else _POSTPROCESS
    if args.compare_with:
        raise errors.UsageError(
            f"--compare-with {args.compare_with} judges the outputs as they are: it goes without {given}",
            next_steps=["leave out one of them"],
        )
    if args.build_only:
        raise errors.UsageError(f"--build-only runs nothing, so that {given} has nothing to do")
    if args.postprocess_func_script and args.record_memory:
        raise errors.UsageError(f"{_POSTPROCESS} needs all outputs in memory: it goes without --record-memory")
    compare = postprocess = None
    if args.compare_func_script:
        path, name = comparing.parse_script(args.compare_func_script, "compare_outputs")
        compare = ComparisonFunction(UserScript(path, "comparison script", _COMPARE), name)
        for dest in (dest for dest in _DECIDES_ALONE if getattr(args, dest)):
            console.warn(f"--{dest.replace('_', '-')} has no effect: the function of {_COMPARE} decides alone")
    if args.postprocess_func_script:
        path, name = comparing.parse_script(args.postprocess_func_script, "postprocess_outputs")
        postprocess = Postprocessing(UserScript(path, "postprocessing script", _POSTPROCESS), name)
    return Functions(compare, postprocess)
