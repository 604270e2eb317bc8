"""The options of ``biopsy debug precision``, and those that follow from others."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments import absent_options, checks, file_kinds, groups, tensorrt
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import other_machines
from biopsy.shell_words import option_line


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model, in its high precision")
    parser.add_argument(
        "-o", "--output", type=file_kinds.WRITTEN, metavar="FILE", help="write the mixed-precision model, ready to use"
    )
    add_report(parser)
    parser.add_argument(
        "--list",
        type=file_kinds.WRITTEN,
        metavar="FILE.txt",
        help="write the names of the layers that must be high, one per line, as for nodes_to_exclude, node_block_list",
    )
    _add_precisions(parser)
    _add_engine(parser)
    _add_search(parser)
    _add_check(parser)
    group = parser.add_argument_group("time limits, and resuming")
    checks.add_limits(group)
    checks.add_resume(group, "search")
    other_machines.add(parser)
    _add_iteration(parser)
    group = parser.add_argument_group("the model")
    groups.add_recorded_inputs(
        group,
        "calibrate --int8 with these inputs (default: those of the check if it is 'biopsy run', else random ones)",
    )
    groups.add_model_type(group)
    groups.add_weights_folder(group)
    groups.add_weights_file(group)
    tensorrt.add(parser, without=("outputs", "exclude_outputs", *_LOW))
    absent_options.add(parser, "debug precision")


def _add_precisions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("precisions")
    low = group.add_mutually_exclusive_group()
    for name, meaning in _LOW.items():
        low.add_argument(f"--{name}", action="store_const", dest="low", const=name, help=meaning)
    group.add_argument(
        "--fp8-format", choices=("e4m3fn", "e5m2"), default="e4m3fn", help="which float8 (default: e4m3fn)"
    )
    group.add_argument(
        "-p",
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        help="the high precision (default: float32)",
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--emulate",
        action="store_const",
        dest="form",
        const="emulate",
        help="low layers compute in float32, and pairs of Casts round their inputs, weights and outputs: for engines "
        "without such arithmetic, as on CPUs (default)",
    )
    form.add_argument(
        "--native",
        action="store_const",
        dest="form",
        const="native",
        help="low layers have low types, with Casts only where precisions meet: for engines that compute in them",
    )


_LOW = {
    "fp16": "the low precision is float16 (default)",
    "bf16": "the low precision is bfloat16",
    "fp8": "the low precision is float8",
    "int8": "the low precision is int8 with scales",
}
"""The low precisions, each an option, with its help."""


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("check an engine built from the mixed-precision model, instead of the model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--trt",
        action="store_const",
        dest="engine",
        const="trt",
        help="build with TensorRT; {} in the check then stands for the file it writes, and low layers are --native",
    )
    which.add_argument(
        "--engine", metavar="NAME[:key=value,...]", help="the same with any engine that writes such files"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the search")
    group.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: few layers, anywhere, none of which can be low (default); bisect: how many from one end of the "
        "network, by halving; linear: the same, one layer at a time",
    )
    group.add_argument(
        "--dir",
        "--direction",
        dest="direction",
        choices=("forward", "reverse"),
        default="forward",
        help="for bisect and linear: raise the first layers, or the last (default: forward)",
    )
    group.add_argument(
        "--cost",
        choices=("flops", "bytes", "count"),
        default="count",
        help="the cost to minimize: the most expensive layers are lowered first (default: count)",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group, "the command that tells whether a candidate passes", f"In it, {checks.CANDIDATE}", checks.ASKED
    )
    checks.add_rules(group, "has no effect here: a candidate with any failure does not pass")
    checks.add_timeout(group, "20 times as long as with every layer high, at least 60")
    checks.add_memory(group)
    checks.add_cold(group)
    checks.add_shown_output(group, "the check with every layer low")
    checks.add_repeating(group)


def _add_iteration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    checks.add_iteration_artifact(
        group,
        f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE}; with --trt: polygraphy_debug.engine)",
        "the last candidate",
    )
    checks.add_iteration_info(group)
    checks.add_events(group)


def _with_settings(args: argparse.Namespace) -> str | None:
    """The engine to build with, TensorRT with its settings. Raises UsageError for settings without a plain --trt."""
    from biopsy.engines.registry import EngineSpec

    engine: str | None = args.engine
    given = tensorrt.given(args)
    if not given:
        return engine
    if engine != "trt":
        raise errors.UsageError(
            f"{given[0]} is a setting of --trt, which is not given",
            next_steps=["--trt", "with --engine, write settings after the name"],
        )
    return EngineSpec("trt", tensorrt.settings(args)).text


def complete(args: argparse.Namespace) -> None:
    """Fill in what depends on other options: the form, and the paths of an iteration's files."""
    args.candidate = Path(checks.DEFAULT_CANDIDATE)
    args.engine = _with_settings(args)
    if args.engine is not None:
        from biopsy.engines.registry import find_class, parse_spec

        saves = [kind for kind in find_class(parse_spec(args.engine).name).capabilities.saves if kind != ".onnx"]
        if not saves:
            raise errors.UsageError(
                f"{args.engine} writes no file of what it builds, so it cannot be checked",
                next_steps=[f"let the check build it: --check biopsy run {{}} {option_line('--engine', args.engine)}"],
            )
        args.iter_artifact = args.iter_artifact or Path(checks.DEFAULT_CANDIDATE).with_suffix(saves[0])
        args.candidate = args.iter_artifact.with_suffix(".onnx")
    elif args.iter_artifact is not None:
        args.candidate = args.iter_artifact
    args.iter_artifact = args.iter_artifact or args.candidate
    low_types = args.engine is not None and args.engine.startswith("trt") and args.low != "fp8"
    args.form = args.form or ("native" if low_types else "emulate")
