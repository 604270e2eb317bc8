"""``biopsy debug transform``: what a tool breaks in a model, the smallest piece of it, and the pass that does it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.arguments.groups import RunLimits
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.report import ReportOption, report_file
from biopsy.cli.run.execution import save, settled
from biopsy.comparison.tolerance import MetricLimits
from biopsy.engines.registry import PLAIN
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.load import require_file
from biopsy.processes.watch import Limits
from biopsy.processes.writing import require_writable
from biopsy.questions.transformations.findings import TransformationFindings, after_file
from biopsy.questions.transformations.question import (
    CommandQuestion,
    SameEngine,
    ToolPackages,
    ToolSpec,
    TransformationQuestion,
    parse_tool,
    tool_python,
)
from biopsy.questions.transformations.tools import TOOLS
from biopsy.reduction.result import inputs_file
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    from biopsy.cli.debug.transform_report import TransformProgress

REST_OPTIONS = checks.REST_OPTIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug transform``."""
    add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The piece, if no option names it, and the files beside it."""
    output = output_of(args)
    return {
        "the piece": (None if args.output else output, types.WRITTEN),
        "the transformed piece": (after_file(output), types.WRITTEN),
        "the inputs of the piece": (inputs_file(output), types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find it; returns 0, or 1 if only loading and saving is wrong already; raises what ends with another status."""
    from biopsy.cli.debug.transform_report import TransformProgress, say_findings
    from biopsy.questions.transformations.find import find_transformation

    require_file(args.model)
    if args.check and engines.EngineOptions.of(args).names_engine:
        raise errors.UsageError("--check and an engine exclude each other: the check runs what it wants")
    if args.control and "{out}" not in args.by:
        raise errors.UsageError("--control is for a tool that is a command: known tools have their own way")
    for path in (output_of(args), args.save_inputs):
        if path is not None:
            require_writable(path)
    tool = parse_tool(args.by)
    report = report_file(args, console)
    index = _index(args)
    with (
        TransformProgress(console, args.events) as progress,
        report.also_of_errors(),
        checking.ended_politely(),
        tool_python(tool, _packages(args), progress) as python,
    ):
        question = _question(args, tool, index, python, console)
        progress.show_plan(question)
        found = find_transformation(question, progress)
        status = 1 if found.fault == "control" else errors.Interrupted.status if found.stopped else 0
        report.write(status, lambda: _sections(args, found, index, progress))
        progress.ended(status, found.piece.nodes)
        say_findings(console, args, found)
    return status


def _index(args: argparse.Namespace) -> ModelIndex:
    index = index_file(args.model, args.external_data_dir)
    if index.has_external_data and args.external_data_dir not in {None, args.model.parent}:
        raise errors.UsageError(
            f"a tool looks for the weights of {args.model} beside it, not in {args.external_data_dir}",
            next_steps=["put a link to the model beside its weights"],
        )
    return index


def _packages(args: argparse.Namespace) -> ToolPackages:
    pinned = tuple(package.text for package in engines.PackageOptions.of(args).pinned())
    return ToolPackages(packages=pinned, beside=tuple(args.beside), python=args.python)


def _question(
    args: argparse.Namespace, tool: ToolSpec, index: ModelIndex, python: Path, console: Console
) -> TransformationQuestion:
    return TransformationQuestion(
        index=index,
        tool=tool,
        python=python,
        decides=CommandQuestion(words=tuple(args.check), timeout=args.check_timeout, memory=args.check_memory)
        if args.check
        else _engine(args, index, console),
        passes=None if args.passes is None else tuple(args.passes),
        control=None if args.control is None else parse_tool(args.control),
        output=output_of(args),
        reduces=not args.no_reduce,
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
        limits=Limits(seconds=args.tool_timeout, memory=args.tool_memory),
    )


def _engine(args: argparse.Namespace, index: ModelIndex, console: Console) -> SameEngine:
    from biopsy.engines.runner import wider_sample

    chosen = engines.EngineOptions.of(args)
    specs = [spec.text for spec in chosen.specs()] if chosen.names_engine else [PLAIN[0]]
    if len(specs) > 1:
        raise errors.UsageError(f"too many engines: {', '.join(specs)}; the same one runs both models")
    tolerances, stats, limits = comparing.JudgeOptions.of(args).limits()
    told = (args.atol, args.rtol, args.check_error_stat)

    def feeds() -> Sequence[Feed]:
        given, _ = settled(index.fed_types(), groups.InputOptions.of(args).inputs(), console)
        save(args.save_inputs, given)
        return given

    return SameEngine(
        feeds=feeds,
        wider=lambda: wider_sample(index, index.fed_types(), groups.InputOptions.of(args).inputs()),
        engine=specs[0],
        tolerances=tolerances,
        stats=stats,
        limits=limits,
        is_told=any(one is not None for one in told) or limits != MetricLimits(),
        timeout=args.run_timeout,
    )


def _sections(
    args: argparse.Namespace, found: TransformationFindings, index: ModelIndex, progress: TransformProgress
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.cli.debug.transform_report import advice_of
    from biopsy.findings.answers import transformation_verdict
    from biopsy.findings.model import model_tree
    from biopsy.findings.report import versions_tree

    return {
        "verdict": transformation_verdict(found),
        "model": model_tree(index, args.model),
        "versions": versions_tree([found.where.engine] if found.where.engine else []),
        "search": progress.history.tree(),
        "transformation": found.as_json(),
        "next": [vars(one) for one in advice_of(args, found)],
    }


# The options of ``biopsy debug transform``.

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
    groups.ModelOption.add(parser, model=", as it is before")
    _add_tool(parser)
    engines.PackageOptions.add(
        parser.add_argument_group(
            "the release of the tool (one that is not installed here is taken from the package index without being "
            "asked)"
        ),
        packages="the release to take",
    )
    _add_result(parser)
    engines.EngineOptions.add_groups(
        parser, "the engine that runs both models (default: onnxrt, with its own optimizer off)"
    )
    TensorrtOptions.add_tensorrt(parser)
    groups.SavedInputOptions.add_group(parser)
    groups.WeightsFolderOption.add(parser)
    comparing.ToleranceOptions.add(
        parser.add_argument_group("what is out of tolerance; if said, it decides alone, without a look at rounding")
    )
    comparing.MetricOptions.add_group(parser)
    _add_check(parser)


def _add_tool(parser: argparse.ArgumentParser) -> None:
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
    groups.OutputOption.add(
        group,
        output="the smallest piece whose transformation is wrong (default: MODEL_piece.onnx); beside PIECE.onnx, "
        "PIECE.after.onnx is what becomes of it, and PIECE.onnx.inputs.safetensors what it is fed",
    )
    group.add_argument("--no-reduce", action="store_true", help="do not make the model smaller")
    ReportOption.add(group)
    checks.EventsOption.add(group, events="write what happens as JSON lines")
    checks.BudgetOptions.add(
        group,
        only=["max_checks", "max_time"],
        max_checks="end the reduction after N checks, with what it has",
        max_time="end the reduction after this time, with what it has",
    )
    RunLimits.add(group, only=["run_timeout"])


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("your own check, instead of an engine")
    checks.CheckOption.add(
        group,
        check="the command that tells whether a transformed model fails; takes the rest of the line. In it, "
        "{} stands for the transformed model and {original} for the model itself, which must pass too if "
        "{original} is not there",
    )
    checks.CheckTimeOptions.add(group, check_timeout="none")
    checks.CheckMemoryOption.add(group)


def output_of(args: argparse.Namespace) -> Path:
    """Where the piece is written."""
    return args.output or Path(f"{args.model.stem}_piece.onnx")
