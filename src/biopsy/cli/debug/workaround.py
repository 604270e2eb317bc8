"""``biopsy debug workaround``: the smallest change with which a model is right in the engine that must be used."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments import checks, types
from biopsy.cli.arguments.comparing import JudgeOptions, MetricOptions, ToleranceOptions
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.groups import (
    InputOptions,
    ModelOption,
    OutputOption,
    WeightsFileOption,
    WeightsFileOptions,
    WeightsFolderOption,
)
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.report import ReportOption
from biopsy.processes.writing import require_writable

REST_OPTIONS = checks.REST_OPTIONS

DEFAULT_TIME = "10m"

KINDS = ("setting", "release", "mark", "barrier", "precision", "spelling")
"""What may be tried, in the order of what it costs: those of ``workarounds.question``, which is imported late."""

_EPILOG = f"""\
examples:
  The engine that must be used, against ONNX Runtime without its optimizer:
    biopsy debug workaround model.onnx --engine openvino -o fixed.onnx
  A check; the last engine of this name in it is the one that must be used:
    biopsy debug workaround model.onnx --engine onnxrt -o fixed.onnx \\
        --check biopsy run {{}} --engine onnxrt:optimization=none --engine onnxrt --load-inputs inputs.npz
  Where to look is known from a reduction; any check, in which {{engine}} is the engine with its settings:
    biopsy debug workaround model.onnx --engine onnxrt --piece reduced.onnx -o fixed.onnx \\
        --load-inputs inputs.npz --check ./check.sh {{}} {{engine}}

exit status: 0 a workaround was found and verified; 1 nothing that was tried is one; 2 wrong usage; 3 the model does not
fail; 4 nothing was concluded or could be tried, or nobody can tell what is right; 5 interrupted, or a limit was reached
before anything was found

{checks.STATUSES}"""


class WorkaroundOptions(
    ModelOption,
    OutputOption,
    ReportOption,
    InputOptions,
    JudgeOptions,
    checks.CheckOption,
    checks.RuleOptions,
    checks.CheckTimeOptions,
    checks.ShownChecks,
    checks.BudgetOptions,
    WeightsFolderOption,
    WeightsFileOptions,
):
    """All options of ``debug workaround``."""

    engine: str | None = option(
        "--engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine that must be used: in a check that is 'biopsy run' the last one written exactly so, else "
        "the last one of this name (default: the last one)",
    )
    only_kinds: Sequence[str] | None = option(
        "--only",
        nargs="+",
        choices=KINDS,
        metavar="KIND",
        meaning=f"try only changes of these: {', '.join(KINDS)}",
    )
    skipped_kinds: Sequence[str] = option(
        "--skip", nargs="+", choices=KINDS, default=(), metavar="KIND", meaning="try no changes of these"
    )
    piece: Path | None = option(
        "--piece",
        rivals="where",
        type=types.READ,
        metavar="FILE",
        meaning="a small part of the model that fails, as 'debug reduce' writes it: its nodes are changed, then those "
        "beside them (default: the model is reduced first)",
    )
    nodes: Sequence[str] = option(
        "--nodes",
        rivals="where",
        nargs="+",
        default=(),
        metavar="NAME",
        meaning="change these nodes, by their names or those of what they compute; patterns allowed",
    )
    reference_engine: str | None = option(
        "--reference-engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine whose outputs are right (default: the first other one of the check; else ONNX Runtime "
        "without its optimizer, else the reference evaluator)",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug workaround``."""
    parser.epilog = _EPILOG
    ModelOption.add(parser, model=" that fails")
    WorkaroundOptions.add(parser, only=["engine"])
    OutputOption.add(
        parser,
        output="write the best patched model, with its weights where they stand if it is in the same folder",
    )
    ReportOption.add(parser)
    WorkaroundOptions.add(
        parser.add_argument_group("what is tried, and where"), only=["only_kinds", "skipped_kinds", "piece", "nodes"]
    )
    group = parser.add_argument_group(
        "what is right (of a check that is 'biopsy run', its own options say it, and how inputs are made)"
    )
    WorkaroundOptions.add(group, only=["reference_engine"])
    ToleranceOptions.add(group)
    MetricOptions.add_group(parser)
    InputOptions.add_group(parser)
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether the model fails; takes the rest of the line. "
        f"In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model, {{engine}} for the engine with "
        "its settings, {settings} for the settings alone. "
        "Without --check, the engine is compared with the one that is right",
    )
    checks.RuleOptions.add(group)
    checks.CheckTimeOptions.add(group)
    checks.ShownOutputOptions.add(group)
    group = parser.add_argument_group("limits")
    checks.BudgetOptions.add(
        group,
        only=["max_checks", "max_time"],
        defaults={"max_time": types.duration(DEFAULT_TIME)},
        max_checks="stop after N checks, with what was found by then",
        max_time=f"stop after this time (90s, 10m, 2h), with what was found by then (default: {DEFAULT_TIME})",
    )
    checks.EventsOption.add(group)
    group = parser.add_argument_group("weights")
    WeightsFolderOption.add(group)
    WeightsFileOptions.add(group)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights."""
    return WeightsFileOption.of(args).derived_weights(args.output)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0 if a workaround was found, 1 if none was, 4 if nothing could be tried.

    Raises what ends with another status.
    """
    from biopsy.cli.debug.workaround_search import WorkaroundProgress, question_of, say_result, sections
    from biopsy.questions.workarounds.find import find_workarounds

    options = WorkaroundOptions.of(args)
    report = options.report_file(console)
    if options.output is not None:
        require_writable(options.output)
    question = question_of(options, console)
    with WorkaroundProgress(console, options) as progress, report.also_of_errors():
        with checking.ended_politely():
            progress.line("model", f"{options.model} in {question.template.spec.text}")
            found = find_workarounds(question, progress)
        if found.interrupted or (found.stopped and not found.found):
            status = errors.Interrupted.status
        else:
            status = errors.CheckError.status if not found.tried else 0 if found.found else 1
        lines = {}  # the checks that show a workaround, as they are typed
        for number, change in enumerate(found.best, 1):
            model = found.output if change.changes_model else options.model
            if model is not None and (not change.changes_model or change is found.patched):
                lines[number] = checking.line_with(question.template, change.engine, change.environment, model)
        report.write(status, lambda: sections(found, question.index, progress, lines))
        say_result(console, found, question.index, lines)
        progress.ended(status)
    if status == errors.Interrupted.status:
        kept = None if found.output is None else f"{found.output}, with which the model is right"
        raise errors.Interrupted(f"stopped by {found.stopped}; what is known is shown above", kept=kept)
    return status
