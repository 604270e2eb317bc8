"""The options of ``biopsy debug reduce``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biopsy.cli.arguments import absent_options, types
from biopsy.cli.arguments.checks import (
    ASKED,
    CANDIDATE,
    DEFAULT_CANDIDATE,
    ArtifactOptions,
    BudgetOptions,
    CheckMemoryOption,
    CheckOption,
    CheckTimeOptions,
    ColdOption,
    EventsOption,
    IterationOptions,
    RepeatOptions,
    ResumedSearch,
    ResumeOptions,
    RuleOptions,
    ShownOutputOptions,
    VacuousOption,
    journal_of,
)
from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.cli.arguments.engines import PackageOptions
from biopsy.cli.arguments.groups import (
    ModelOption,
    OutputOption,
    RecordedInputs,
    RunLimits,
    WeightsFileOption,
    WeightsFolderOption,
)
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, other_machines
from biopsy.cli.report import ReportOption

if TYPE_CHECKING:
    from biopsy.cli.run.options import RunOptions
    from biopsy.reduction.schedule import Passes


class GoodModelOption(Options):
    """The file for a passing model."""

    min_good: Path | None = option(
        "--min-good",
        "--minimal-good",
        type=types.WRITTEN,
        meaning="also write the passing model that is closest in size",
    )


class ModeOption(Options):
    """How thorough the search is."""

    mode: Literal["minimal", "bisect", "linear"] = option(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        meaning="minimal: bisect, then search for the needed nodes wherever they are, until no single node can be "
        "removed (default); bisect: one piece, by halving, O(log N) checks; linear: node by node, O(N) checks",
    )


class CandidateOptions(Options):
    """Files that are written for candidates."""

    iter_inputs: Path | None = option(
        "--iter-inputs",
        type=types.ITERATION,
        meaning="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    keep_other: Path | None = option(
        "--keep-other", type=types.FOLDER_WRITTEN, meaning="keep one model of each other failure met on the way"
    )


class ShapeOptions(Options):
    """How the shapes of the original are determined."""

    model_input_shapes: Sequence[str] | None = option(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[SHAPE]",
        meaning="fix the shapes of dynamic inputs: x:[1,3,224,224] y:[2]",
    )
    no_shape_inference: bool = switch(
        "--no-shape-inference", rivals="inference", meaning="take types only from the model's own value_info"
    )
    force_fallback_shape_inference: bool = switch(
        "--force-fallback-shape-inference", rivals="inference", meaning="take types and shapes from a run of the model"
    )

    def shapes_fixed(self) -> dict[str, tuple[int, ...]]:
        """The shapes of ``--model-input-shapes`` by input. Raises UsageError for words of another form."""
        return types.parse_shapes(self.model_input_shapes, "--model-input-shapes")


class RecordWithOption(Options):
    """The engine that records the values of the original."""

    record_with: str | None = option(
        "--record-with",
        metavar="NAME[:key=value,...]",
        meaning="the engine that records the original's values (default: onnxrt with its optimizer off, else "
        "reference)",
    )


class BorderOptions(Options):
    """What may change about the inputs, outputs and values of the original."""

    no_reduce_inputs: bool = switch(
        "--no-reduce-inputs", rivals="kept", meaning="keep the inputs: remove nodes only from the end"
    )
    no_reduce_outputs: bool = switch(
        "--no-reduce-outputs", rivals="kept", meaning="keep the outputs: remove nodes only from the beginning"
    )
    cut: Literal["auto", "input", "constant"] = option(
        "--cut",
        choices=("auto", "input", "constant"),
        default="auto",
        meaning="what happens to a cut tensor: it becomes an input, a constant, or either, by its kind (default: auto)",
    )
    values: Literal["auto", "keep", "free"] = option(
        "--values",
        choices=("auto", "keep", "free"),
        default="auto",
        meaning="may candidates compute other values than the original? keep: no; free: yes, which allows smaller "
        "results but misleads a check against golden values; auto: find out (default)",
    )
    mark_intermediate: bool = switch(
        "--mark-intermediate",
        meaning="start with every tensor marked as an output, for a failure that later nodes mask (automatic where a "
        "check with --load-outputs passes but finds an inner tensor wrong)",
    )


class _ListPasses(argparse.Action):
    """Shows the table of passes and exits. Like ``--help``, it needs no model."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        from biopsy.reduction.schedule import MODEL_PASSES, PASSES

        rows = [(named.name, named.summary, "") for named in PASSES]
        rows += [
            (named.name, named.summary, " or ".join(f"--{option}" for option in named.only_with))
            for named in MODEL_PASSES
        ]
        width = max(len(name) for name, _, _ in rows)
        table = [f"{name:<{width}}  {summary}{f' ({only})' if only else ''}" for name, summary, only in rows]
        Console().say(*table)
        parser.exit()


class PassOptions(Options):
    """The passes that run."""

    simplify: bool = switch(
        "--simplify", meaning="when few nodes are left, also try to remove attributes, shrink sizes and fill weights"
    )
    anonymize: bool = switch(
        "--anonymize",
        meaning="when few nodes are left, also try to replace names and weights, so that the file can be shared; "
        "reports what could not be replaced",
    )
    order_by: Path | None = option(
        "--order-by",
        type=types.READ,
        metavar="LAYERS.json",
        meaning="try first the layers that a report of 'biopsy debug layers' finds wrong (--mode minimal and bisect)",
    )
    list_passes: None = option(
        "--list-passes", nargs=0, action=_ListPasses, default=argparse.SUPPRESS, meaning="list the passes in order"
    )
    skip_pass: Sequence[str] = option(
        "--skip-pass", nargs="+", action="extend", default=[], metavar="NAME", meaning="skip these passes"
    )
    only_pass: Sequence[str] = option(
        "--only-pass", nargs="+", action="extend", default=[], metavar="NAME", meaning="run only these passes"
    )

    def passes(self) -> Passes:
        """The options as the schedule takes them."""
        from biopsy.reduction.schedule import Passes

        return Passes(
            simplify=self.simplify, anonymize=self.anonymize, skip=tuple(self.skip_pass), only=tuple(self.only_pass)
        )


class ExplainOptions(Options):
    """Whether to find out what may vary in the result."""

    explain: bool = switch(
        "--explain",
        meaning="find out which attributes, sizes, types, weights and inputs of the result may change without changing "
        "the failure, and which may not",
    )
    explain_checks: int | None = option(
        "--explain-checks",
        type=types.positive,
        meaning="as --explain, with at most N checks (default: 250; in any case it ends after 5 minutes)",
    )

    @property
    def explains(self) -> bool:
        """Whether one of the two options is given."""
        return bool(self.explain or self.explain_checks)


class ReduceOptions(
    ModelOption,
    OutputOption,
    GoodModelOption,
    ReportOption,
    ModeOption,
    CheckOption,
    RuleOptions,
    CheckTimeOptions,
    CheckMemoryOption,
    VacuousOption,
    ColdOption,
    ShownOutputOptions,
    PackageOptions,
    RepeatOptions,
    BudgetOptions,
    ResumedSearch,
    ArtifactOptions,
    IterationOptions,
    CandidateOptions,
    EventsOption,
    ShapeOptions,
    RecordWithOption,
    RunLimits,
    WeightsFolderOption,
    WeightsFileOption,
    BorderOptions,
    PassOptions,
    ExplainOptions,
):
    """All options of ``debug reduce``."""

    bundle: Path | None = None

    @property
    def candidate(self) -> Path:
        """The file that each candidate is written to."""
        return self.iter_artifact or Path(DEFAULT_CANDIDATE)

    @property
    def result(self) -> Path:
        """The file of the reduced model."""
        return self.output or Path(f"{self.model.stem}_reduced.onnx")

    @property
    def explanation_journal(self) -> Path | None:
        """The journal of ``--explain``; None without that option."""
        return journal_of(self.result.with_name(f"{self.result.name}.explain")) if self.explains else None

    def records_feeds(self, own_run: RunOptions | None) -> bool:
        """Whether recorded inputs are written beside the result.

        This is so if the check is ``biopsy run`` (``own_run`` are its options) with inputs of the whole model only: it
        would make up values for cut tensors.
        """
        from biopsy.reduction.result import inputs_file

        if own_run is None or not own_run.load_inputs or own_run.load_outputs:
            return False
        if self.iter_inputs or self.no_reduce_inputs or (self.load_inputs and self.load_inputs != own_run.load_inputs):
            return False
        files = [file.resolve() for file in own_run.load_inputs if file.exists()]
        return len(files) == len(own_run.load_inputs) and inputs_file(self.result).resolve() not in files


def add(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    ModelOption.add(parser, model=" that fails")
    OutputOption.add(parser, output="the reduced model (default: MODEL_reduced.onnx)")
    ReportOption.add(parser)
    GoodModelOption.add(parser)
    bundling.add(parser, "the result")
    ModeOption.add(parser)
    group = parser.add_argument_group("the check")
    CheckOption.add(
        group,
        check="the command that tells whether a candidate fails; takes the rest of the line. "
        f"In it, {CANDIDATE}. {ASKED}. "
        "The check that allows the smallest results is 'biopsy run' without --load-outputs, which computes its "
        "reference anew for each candidate",
    )
    RuleOptions.add(group)
    CheckTimeOptions.add(group, check_timeout="20 times as long as the original's, at least 60")
    CheckMemoryOption.add(group, check_memory="; this counts as another failure, unless the original needs more too")
    VacuousOption.add(group)
    ColdOption.add(group)
    ShownOutputOptions.add(group, hide_fail_output="the original's failure")
    PackageOptions.add(
        parser.add_argument_group("the releases that the check is made with"),
        packages="run the engines of this package in a check that is 'biopsy run' from this release of it; in any "
        "other check, {python} stands for the interpreter of an environment with it",
    )
    RepeatOptions.add(parser.add_argument_group("flaky failures"))
    group = parser.add_argument_group("time limits, and resuming")
    BudgetOptions.add(group)
    ResumeOptions.add(
        group,
        fresh="start over instead of resuming an interrupted reduction, whose journal (OUTPUT.journal) is kept aside",
    )
    other_machines.add(parser)
    group = parser.add_argument_group("files of each iteration")
    ArtifactOptions.add(group)
    IterationOptions.add(
        group,
        defaults={"iter_artifact": Path(DEFAULT_CANDIDATE)},
        iter_artifact=f"where each candidate is written (default: {DEFAULT_CANDIDATE})",
    )
    CandidateOptions.add(group)
    EventsOption.add(group)
    group = parser.add_argument_group("the model")
    ShapeOptions.add(group)
    RecordedInputs.add(
        group,
        load_inputs="record values with these inputs, all iterations of them (default: those of the check, else random "
        "ones)",
    )
    RecordWithOption.add(group)
    RunLimits.add(group, only=["run_memory"])
    WeightsFolderOption.add(group)
    WeightsFileOption.add(group)
    BorderOptions.add(parser.add_argument_group("what may change"))
    PassOptions.add(parser.add_argument_group("the passes of mode minimal"))
    ExplainOptions.add(parser.add_argument_group("what may vary"))
    absent_options.add(parser, "debug reduce")
