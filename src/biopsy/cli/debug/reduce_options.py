"""The options of ``biopsy debug reduce``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biopsy.cli.arguments import types
from biopsy.cli.arguments.checks import (
    DEFAULT_CANDIDATE,
    EventsOption,
    RepeatOptions,
    ResumedSearch,
    ShownOutputOptions,
    VacuousOption,
    journal_of,
)
from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.cli.arguments.engines import PackageOptions
from biopsy.cli.arguments.groups import (
    ModelOption,
    OutputOption,
    RunLimits,
    WeightsFileOption,
    WeightsFolderOption,
)
from biopsy.cli.console import Console
from biopsy.cli.debug.checking import CheckedOptions
from biopsy.cli.report import ReportOption

if TYPE_CHECKING:
    from biopsy.cli.run.options import RunOptions
    from biopsy.reduction.schedule import Passes


class CandidateOptions(Options, title="files of each iteration"):
    """Files that are written for candidates."""

    iter_inputs: Path | None = option(
        "--iter-inputs",
        type=types.ITERATION,
        meaning="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    keep_other: Path | None = option(
        "--keep-other", type=types.FOLDER_WRITTEN, meaning="keep one model of each other failure met on the way"
    )


class ShapeOptions(Options, title="the model"):
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


class BorderOptions(Options, title="what may change"):
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


class PassOptions(Options, title="the passes of mode minimal"):
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


class ExplainOptions(Options, title="what may vary"):
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
    ReportOption,
    CheckedOptions,
    VacuousOption,
    ShownOutputOptions,
    PackageOptions,
    RepeatOptions,
    ResumedSearch,
    CandidateOptions,
    EventsOption,
    ShapeOptions,
    RunLimits,
    WeightsFolderOption,
    WeightsFileOption,
    BorderOptions,
    PassOptions,
    ExplainOptions,
):
    """All options of ``debug reduce``."""

    bundle: Path | None = None
    min_good: Path | None = option(
        "--min-good",
        "--minimal-good",
        type=types.WRITTEN,
        meaning="also write the passing model that is closest in size",
    )
    mode: Literal["minimal", "bisect", "linear"] = option(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        meaning="minimal: bisect, then search for the needed nodes wherever they are, until no single node can be "
        "removed (default); bisect: one piece, by halving, O(log N) checks; linear: node by node, O(N) checks",
    )
    record_with: str | None = option(
        "--record-with",
        title="the model",
        metavar="NAME[:key=value,...]",
        meaning="the engine that records the original's values (default: onnxrt with its optimizer off, else "
        "reference)",
    )

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
