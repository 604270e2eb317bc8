"""The options of ``biopsy diagnose``."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy.cli.advice import folder_of_diagnosis
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.debug import bundling
from biopsy.cli.report import ReportOption

_DEFAULT_TIME = "10m"


class DiagnoseOptions(
    groups.ModelOption,
    engines.EngineOptions,
    groups.InputOptions,
    comparing.JudgeOptions,
    checks.CheckOption,
    checks.RuleOptions,
    checks.BudgetOptions,
    checks.FreshOption,
    ReportOption,
    checks.EventsOption,
    groups.WeightsFolderOption,
):
    """All options of ``diagnose``."""

    bundle: Path | None = None
    thorough: bool = switch(
        "--thorough",
        meaning="also ask what takes minutes, within --max-time: which change makes the whole model right, and which "
        "release of the engine broke it, or mended it (installs releases in environments of their own)",
    )
    downloads: bool = option(
        "--no-download",
        action="store_false",
        default=True,
        meaning="with --thorough: install nothing, ask no index",
    )
    by: str | None = option(
        "--by",
        metavar="TOOL",
        meaning="a tool that the model goes through, as for 'debug transform': also ask whether it breaks the model",
    )
    dir: Path | None = option(
        "--dir",
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        meaning="the folder that keeps what was found; what it answers is not asked again (default: "
        "MODEL_diagnosis; MODEL_diagnosis-2, and so on, if that was not written by a diagnosis of yours)",
    )
    answered: bool = switch(
        "--answered",
        meaning="ask nothing: show what the folder answers, or with --report or --bundle only write these, with "
        "status 0; refuse a folder that was asked about another model or check",
    )
    json: bool = switch("--json", meaning="print the report as JSON on stdout, and nothing else")

    @property
    def folder(self) -> Path:
        """The folder of the evidence."""
        return self.dir or folder_of_diagnosis(self.model)


def add(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    groups.ModelOption.add(parser)
    engines.EngineOptions.add(
        parser,
        without=TensorrtOptions.declared,
        titles={
            "engines": "engines (repeatable); several are compared with the first, one with ONNX Runtime without its "
            "optimizer and with the reference evaluator"
        },
    )
    groups.InputOptions.add(parser)
    comparing.ToleranceOptions.add(parser.add_argument_group("what counts as equal"))
    comparing.MetricOptions.add(parser)
    group = parser.add_argument_group("a check of your own")
    checks.CheckOption.add(
        group,
        check="the command that tells whether the model fails, in place of a comparison of engines; takes the rest of "
        f"the line. In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model, {{engine}} and "
        "{settings} for the last engine that is named before it, so that its settings can be tried",
    )
    checks.RuleOptions.add(group)
    checks.CheckTimeOptions.add(group, only=["keep_processes"])
    checks.BudgetOptions.add(
        parser.add_argument_group("time"),
        only=["max_time", "jobs"],
        defaults={"max_time": types.duration(_DEFAULT_TIME)},
        max_time=f"stop after this time (90s, 10m, 2h), and say what is known by then (default: {_DEFAULT_TIME})",
        jobs="run N checks at once; the result is the same for any N (default: one per processor)",
    )
    DiagnoseOptions.add(parser.add_argument_group("more questions"), only=["thorough", "downloads", "by"])
    group = parser.add_argument_group("evidence and report")
    DiagnoseOptions.add(group, only=["dir", "answered"])
    checks.FreshOption.add(group, fresh="ask everything again instead of using the answers in the folder")
    ReportOption.add(group)
    bundling.add(group, "the piece")
    DiagnoseOptions.add(group, only=["json"])
    checks.EventsOption.add(group)
    groups.WeightsFolderOption.add(parser)
    TensorrtOptions.add(parser)
