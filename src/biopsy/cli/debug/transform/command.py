"""``biopsy debug transform``: what a tool breaks in a model, the smallest piece of it, and the pass that does it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.arguments import checks, engine_options, file_kinds
from biopsy.cli.debug import checking
from biopsy.cli.debug.transform import options
from biopsy.cli.debug.transform.options import output_of
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from pathlib import Path

    from biopsy.blame.transformations.findings import TransformationFindings
    from biopsy.blame.transformations.question import CommandQuestion, SameEngine, TransformationQuestion
    from biopsy.blame.transformations.spec import ToolSpec
    from biopsy.blame.transformations.tool_python import ToolPackages
    from biopsy.cli.console import Console
    from biopsy.cli.debug.transform.progress import TransformProgress
    from biopsy.model.index import ModelIndex
    from biopsy.tensors.results import Feed

REST_OPTIONS = checks.REST_OPTIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug transform``."""
    options.add(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The piece, if no option names it, and the files beside it."""
    from biopsy.blame.transformations.findings import after_file
    from biopsy.reduction.inputs_file import inputs_file

    output = output_of(args)
    return {
        "the piece": (None if args.output else output, file_kinds.WRITTEN),
        "the transformed piece": (after_file(output), file_kinds.WRITTEN),
        "the inputs of the piece": (inputs_file(output), file_kinds.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find it; returns 0, or 1 if only loading and saving is wrong already; raises what ends with another status."""
    from biopsy.blame.transformations.find import find_transformation
    from biopsy.blame.transformations.spec import parse_tool
    from biopsy.blame.transformations.tool_python import tool_python
    from biopsy.cli.debug.transform.progress import TransformProgress, say_findings

    _require_sense(args)
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


def _require_sense(args: argparse.Namespace) -> None:
    from biopsy.filesystem.write import require_writable
    from biopsy.model.load import require_file

    require_file(args.model)
    if args.check and (args.engines or engine_options.settings_given(args)):
        raise errors.UsageError("--check and an engine exclude each other: the check runs what it wants")
    if args.control and "{out}" not in args.by:
        raise errors.UsageError("--control is for a tool that is a command: known tools have their own way")
    for path in (output_of(args), args.save_inputs):
        if path is not None:
            require_writable(path)


def _index(args: argparse.Namespace) -> ModelIndex:
    from biopsy.model.index import index_file

    index = index_file(args.model, args.external_data_dir)
    if index.has_external_data and args.external_data_dir not in {None, args.model.parent}:
        raise errors.UsageError(
            f"a tool looks for the weights of {args.model} beside it, not in {args.external_data_dir}",
            next_steps=["put a link to the model beside its weights"],
        )
    return index


def _packages(args: argparse.Namespace) -> ToolPackages:
    from biopsy.blame.transformations.tool_python import ToolPackages
    from biopsy.cli.arguments.packages import packages_of

    pinned = tuple(package.text for package in packages_of(args))
    return ToolPackages(packages=pinned, beside=tuple(args.beside), python=args.python)


def _question(
    args: argparse.Namespace, tool: ToolSpec, index: ModelIndex, python: Path, console: Console
) -> TransformationQuestion:
    from biopsy.blame.transformations.question import TransformationQuestion
    from biopsy.blame.transformations.spec import parse_tool
    from biopsy.isolation.watch import Limits
    from biopsy.session.budget import Budget

    return TransformationQuestion(
        index=index,
        tool=tool,
        python=python,
        decides=_command(args) if args.check else _engine(args, index, console),
        passes=None if args.passes is None else tuple(args.passes),
        control=None if args.control is None else parse_tool(args.control),
        output=output_of(args),
        reduces=not args.no_reduce,
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
        limits=Limits(seconds=args.tool_timeout, memory=args.tool_memory),
    )


def _command(args: argparse.Namespace) -> CommandQuestion:
    from biopsy.blame.transformations.question import CommandQuestion

    return CommandQuestion(words=tuple(args.check), timeout=args.check_timeout, memory=args.check_memory)


def _engine(args: argparse.Namespace, index: ModelIndex, console: Console) -> SameEngine:
    from biopsy.blame.transformations.question import SameEngine
    from biopsy.cli.arguments.comparing import limits_of
    from biopsy.cli.run.settings import inputs_of, tolerances_of
    from biopsy.comparison.tolerance import MetricLimits
    from biopsy.engines.wider_inputs import wider_sample
    from biopsy.engines.yardsticks import PLAIN

    named = args.engines or engine_options.settings_given(args)
    specs = [spec.text for spec in engine_options.engine_specs(args)] if named else [PLAIN[0]]
    if len(specs) > 1:
        raise errors.UsageError(f"too many engines: {', '.join(specs)}; the same one runs both models")
    tolerances, stats = tolerances_of(args)
    limits = limits_of(args)
    told = (args.atol, args.rtol, args.check_error_stat)
    return SameEngine(
        feeds=lambda: _feeds(args, index, console),
        wider=lambda: wider_sample(index, index.fed_types(), inputs_of(args)),
        engine=specs[0],
        tolerances=tolerances,
        stats=stats,
        limits=limits,
        is_told=any(one is not None for one in told) or limits != MetricLimits(),
        timeout=args.run_timeout,
    )


def _feeds(args: argparse.Namespace, index: ModelIndex, console: Console) -> Sequence[Feed]:
    from biopsy.cli.run.inputs import save, settled
    from biopsy.cli.run.settings import inputs_of

    feeds, _ = settled(index.fed_types(), inputs_of(args), console)
    save(args.save_inputs, feeds)
    return feeds


def _sections(
    args: argparse.Namespace, found: TransformationFindings, index: ModelIndex, progress: TransformProgress
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.cli.debug.transform.progress import advice_of
    from biopsy.report.model_summary import model_tree
    from biopsy.report.transformation import transformation_tree, transformation_verdict
    from biopsy.report.versions import versions_tree

    return {
        "verdict": transformation_verdict(found),
        "model": model_tree(index, args.model),
        "versions": versions_tree([found.where.engine] if found.where.engine else []),
        "search": progress.history.tree(),
        "transformation": transformation_tree(found),
        "next": [vars(one) for one in advice_of(args, found)],
    }
