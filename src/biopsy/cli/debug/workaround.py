"""``biopsy debug workaround``: the smallest change with which a model is right in the engine that must be used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import checks, comparing, groups, types
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.report import ReportOption, report_file
from biopsy.processes.writing import require_writable

if TYPE_CHECKING:
    from biopsy.questions.workarounds.question import WorkaroundQuestion
    from biopsy.questions.workarounds.result import VerifiedChange, Workarounds

REST_OPTIONS = checks.REST_OPTIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug workaround``."""
    add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights."""
    return groups.WeightsFileOption.of(args).derived_weights(args.output)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0 if a workaround was found, 1 if none was, 4 if nothing could be tried.

    Raises what ends with another status.
    """
    from biopsy.cli.debug.workaround_search import WorkaroundProgress, question_of, say_result, sections
    from biopsy.questions.workarounds.find import find_workarounds

    report = report_file(args, console)
    if args.output is not None:
        require_writable(args.output)
    question = question_of(args, console)
    with WorkaroundProgress(console, args) as progress, report.also_of_errors():
        with checking.ended_politely():
            progress.line("model", f"{args.model} in {question.template.spec.text}")
            found = find_workarounds(question, progress)
        status = _status(found)
        shown = [*enumerate(found.best, 1)]
        lines = {
            number: _line(args, question, one)
            for number, one in shown
            if (not one.changes_model or (found.output is not None and one is found.patched))
        }
        report.write(status, lambda: sections(found, question.index, progress, lines))
        say_result(console, found, question.index, lines)
        progress.ended(status)
    if found.interrupted or status == errors.Interrupted.status:
        kept = None if found.output is None else f"{found.output}, with which the model is right"
        raise errors.Interrupted(f"stopped by {found.stopped}; what is known is shown above", kept=kept)
    return status


def _status(found: Workarounds) -> int:
    if found.interrupted or (found.stopped and not found.found):
        return errors.Interrupted.status
    if not found.tried:
        return errors.CheckError.status
    return 0 if found.found else 1


def _line(args: argparse.Namespace, question: WorkaroundQuestion, one: VerifiedChange) -> str:
    """The check that shows a workaround, as it is typed; a patched model stands where it was or would be written."""
    model = args.output if one.changes_model else args.model
    return checking.line_with(question.template, one.engine, one.environment, model)


# The options of ``biopsy debug workaround``.

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


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.epilog = _EPILOG
    groups.ModelOption.add(parser, model=" that fails")
    parser.add_argument(
        "--engine",
        metavar="NAME[:key=value,...]",
        help="the engine that must be used: in a check that is 'biopsy run' the last one written exactly so, else the "
        "last one of this name (default: the last one)",
    )
    groups.OutputOption.add(
        parser,
        output="write the best patched model, with its weights where they stand if it is in the same folder",
    )
    ReportOption.add(parser)
    _add_tried(parser)
    _add_right(parser)
    groups.InputOptions.add_group(parser)
    _add_check(parser)
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
    groups.WeightsFolderOption.add(group)
    groups.WeightsFileOptions.add(group)


def _add_tried(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is tried, and where")
    listed = ", ".join(KINDS)
    group.add_argument(
        "--only", nargs="+", choices=KINDS, default=None, metavar="KIND", help=f"try only changes of these: {listed}"
    )
    group.add_argument("--skip", nargs="+", choices=KINDS, default=(), metavar="KIND", help="try no changes of these")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--piece",
        type=types.READ,
        metavar="FILE",
        help="a small part of the model that fails, as 'debug reduce' writes it: its nodes are changed, then those "
        "beside them (default: the model is reduced first)",
    )
    where.add_argument(
        "--nodes",
        nargs="+",
        default=(),
        metavar="NAME",
        help="change these nodes, by their names or those of what they compute; patterns allowed",
    )


def _add_right(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what is right (of a check that is 'biopsy run', its own options say it, and how inputs are made)"
    )
    group.add_argument(
        "--reference-engine",
        metavar="NAME[:key=value,...]",
        help="the engine whose outputs are right (default: the first other one of the check; else ONNX Runtime without "
        "its optimizer, else the reference evaluator)",
    )
    comparing.ToleranceOptions.add(group)
    comparing.MetricOptions.add_group(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
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
