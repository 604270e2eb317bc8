"""The options of ``biopsy diagnose``, and its ``--bundle``: the piece and the check that it fails, or the whole
model where there is no piece.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.command import CommandCheck
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, checking
from biopsy.cli.report import ReportOption
from biopsy.diagnosis.facts import Diagnosis

if TYPE_CHECKING:
    from biopsy.diagnosis.question import DiagnosisQuestion

DEFAULT_TIME = "10m"


def folder_of(args: argparse.Namespace) -> Path:
    """Where the evidence stands."""
    return args.dir or Path(f"{args.model.stem}_diagnosis")


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    groups.ModelOption.add(parser)
    engines.EngineOptions.add_groups(
        parser,
        "engines (repeatable); several are compared with the first, one with ONNX Runtime without its optimizer and "
        "with the reference evaluator",
    )
    groups.InputOptions.add_group(parser)
    comparing.ToleranceOptions.add(parser.add_argument_group("what counts as equal"))
    comparing.MetricOptions.add_group(parser)
    _add_check(parser)
    group = parser.add_argument_group("time")
    checks.BudgetOptions.add(
        group,
        only=["max_time", "jobs"],
        defaults={"max_time": types.duration(DEFAULT_TIME)},
        max_time=f"stop after this time (90s, 10m, 2h), and say what is known by then (default: {DEFAULT_TIME})",
        jobs="run N checks at once; the result is the same for any N (default: one per processor)",
    )
    _add_more(parser)
    _add_evidence(parser)
    groups.WeightsFolderOption.add(parser)
    TensorrtOptions.add_tensorrt(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a check of your own")
    checks.CheckOption.add(
        group,
        check="the command that tells whether the model fails, in place of a comparison of engines; takes the rest of "
        f"the line. In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model, {{engine}} and "
        "{settings} for the last engine that is named before it, so that its settings can be tried",
    )
    checks.RuleOptions.add(group)
    checks.CheckTimeOptions.add(group, only=["keep_processes"])


def _add_more(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("more questions")
    group.add_argument(
        "--thorough",
        action="store_true",
        help="also ask what takes minutes, within --max-time: which change makes the whole model right, and which "
        "release of the engine broke it, or mended it (installs releases in environments of their own)",
    )
    group.add_argument(
        "--no-download", dest="downloads", action="store_false", help="with --thorough: install nothing, ask no index"
    )
    group.add_argument(
        "--by",
        metavar="TOOL",
        help="a tool that the model goes through, as for 'debug transform': also ask whether it breaks the model",
    )


def _add_evidence(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("evidence and report")
    group.add_argument(
        "--dir",
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        help="the folder that keeps what was found; a diagnosis that was stopped goes on there (default: "
        "MODEL_diagnosis; MODEL_diagnosis-2, and so on, if that was not written by a diagnosis of yours)",
    )
    checks.FreshOption.add(group, fresh="begin anew instead of going on with a diagnosis that was stopped")
    ReportOption.add(group)
    bundling.add(group, "the piece")
    group.add_argument("--json", action="store_true", help="print the report as JSON on stdout, and nothing else")
    checks.EventsOption.add(group)


def pack(
    args: argparse.Namespace, question: DiagnosisQuestion, diagnosis: Diagnosis, report: bytes, console: Console
) -> None:
    """Pack what fails, if anything does. Raises CheckError if the script of the bundle does not show it."""
    from biopsy.diagnosis.question import without_weights_folder
    from biopsy.findings.bundle.job import EarlierFindings

    facts = diagnosis.facts
    failure, piece, steadiness = facts.failure, facts.piece, facts.steadiness
    known, variation = facts.known, facts.variation
    if failure is None:
        console.warn(f"{args.bundle} is not written: no failure was found that could be packed")
        return
    words = list(without_weights_folder(failure.check))
    packing = bundling.Packing(
        target=args.bundle,
        original=question.model,
        model=question.model if piece is None else Path(piece.path),
        check=CommandCheck(words, "{}"),
        rules=question.judging.rules,
        own_run=checking.own_run(words),
        inputs=None if piece is None or piece.inputs is None else Path(piece.inputs),
        folder=question.weights_folder if piece is None else None,
        reports=bundling.reports_of(report, console),
        found=EarlierFindings(
            verdict=diagnosis.verdict.text,
            variation="" if variation is None or variation.kept else variation.sentence,
            known=f"{known.reference}: {known.evidence}" if known is not None and known.reference else "",
            how_often="" if steadiness is None else steadiness.how_often,
            workarounds=tuple((each.text, each.line or "") for each in diagnosis.verdict.workarounds),
            links={known.reference: known.issue} if known is not None and known.issue else {},
        ),
    )
    bundling.pack(packing, console)
