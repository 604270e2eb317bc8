"""The options of ``biopsy debug transform``."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy.cli.arguments import checks, comparing, engine_options, file_kinds, groups, packages, tensorrt, types
from biopsy.cli.arguments.report_option import add_report

EPILOG = """\
examples:
  biopsy debug transform model.onnx --by onnxslim -o piece.onnx
  biopsy debug transform model.onnx --by onnxruntime:level=extended
  biopsy debug transform model.onnx --by onnxslim --package onnxslim==0.1.50 --openvino --load-inputs inputs.npz
  biopsy debug transform model.onnx --by fp16 --report fp16.html
  Any tool that reads one file and writes another; no shell sees the line:
    biopsy debug transform model.onnx --by 'mytool {} -o {out}' --control 'mytool --no-passes {} -o {out}'
  Any check; {} is the transformed model, {original} the model itself:
    biopsy debug transform model.onnx --by onnxsim --check ./check.sh {}

exit status: 0 what breaks the model was found; 1 only loading and saving it breaks it already: no pass is to blame;
2 wrong usage; 3 the transformed model is right, or the model fails before it is transformed; 4 nothing can be said (the
tool cannot be run or installed, the model gives other values in each run); 5 interrupted, with the best result saved"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.epilog = EPILOG
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model, as it is before")
    _add_tool(parser)
    packages.add_packages(
        parser,
        "the release of the tool (one that is not installed here is taken from the package index without being asked)",
        "the release to take",
    )
    _add_result(parser)
    engine_options.add_engines(parser, "the engine that runs both models (default: onnxrt, with its own optimizer off)")
    tensorrt.add(parser)
    groups.add_inputs(parser)
    groups.add_weights_folder(parser)
    comparing.add_tolerances(
        parser.add_argument_group("what is out of tolerance; if said, it decides alone, without a look at rounding")
    )
    comparing.add_limits(parser)
    _add_check(parser)


def _add_tool(parser: argparse.ArgumentParser) -> None:
    from biopsy.blame.transformations.known_tools import TOOLS

    group = parser.add_argument_group("the tool")
    group.add_argument(
        "--by",
        required=True,
        metavar="TOOL",
        help=f"what transforms it: {', '.join(TOOLS)}, with settings as in onnxruntime:level=extended; or a command "
        "with {} for the model and {out} for the file to write",
    )
    group.add_argument(
        "--passes",
        nargs="+",
        metavar="NAME",
        help="only these passes may run (default: those that run by themselves); in a command, {passes} stands for "
        "them, with commas",
    )
    group.add_argument(
        "--control",
        metavar="COMMAND",
        help="the command that only loads and saves the model, where TOOL is a command (default: onnx does that)",
    )
    group.add_argument(
        "--tool-timeout",
        type=types.duration,
        default=600.0,
        metavar="TIME",
        help="end a transformation that takes longer (default: 10m)",
    )
    group.add_argument(
        "--tool-memory", type=types.byte_size, metavar="SIZE", help="end one that uses more (default: no limit)"
    )


def _add_result(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the result")
    group.add_argument(
        "-o",
        "--output",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="the smallest piece whose transformation is wrong (default: MODEL_piece.onnx); beside PIECE.onnx, "
        "PIECE.after.onnx is what becomes of it, and PIECE.onnx.inputs.safetensors what it is fed",
    )
    group.add_argument("--no-reduce", action="store_true", help="do not make the model smaller")
    add_report(group)
    group.add_argument("--events", type=file_kinds.WRITTEN, metavar="FILE", help="write what happens as JSON lines")
    group.add_argument(
        "--max-checks", type=types.positive, metavar="N", help="end the reduction after N checks, with what it has"
    )
    group.add_argument(
        "--max-time", type=types.duration, metavar="TIME", help="end the reduction after this time, with what it has"
    )
    group.add_argument("--run-timeout", type=types.duration, metavar="TIME", help="end a run that takes longer")


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("your own check, instead of an engine")
    checks.add_command(
        group,
        "the command that tells whether a transformed model fails",
        "In it, {} stands for the transformed model and {original} for the model itself, which must pass too if "
        "{original} is not there",
    )
    checks.add_timeout(group, "none")
    checks.add_memory(group)


def output_of(args: argparse.Namespace) -> Path:
    """Where the piece is written."""
    return args.output or Path(f"{args.model.stem}_piece.onnx")
