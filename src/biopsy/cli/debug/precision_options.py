"""The options of ``biopsy debug precision``."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from biopsy import errors
from biopsy.cli.arguments import checks, groups, types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.debug.checking import CheckedOptions
from biopsy.cli.report import ReportOption
from biopsy.engines.registry import EngineSpec, find_class, parse_spec
from biopsy.text import option_line

if TYPE_CHECKING:
    from biopsy.questions.precision.formats import Form
    from biopsy.questions.precision.mixed_models import High
    from biopsy.questions.precision.plan import Cost
    from biopsy.questions.precision.search import Direction, Mode

LOW = {
    "fp16": "the low precision is float16 (default)",
    "bf16": "the low precision is bfloat16",
    "fp8": "the low precision is float8",
    "int8": "the low precision is int8 with scales",
}
"""The low precisions, each an option, with its help."""

_FORMS = {
    "emulate": "low layers compute in float32, and pairs of Casts round their inputs, weights and outputs: for engines "
    "without such arithmetic, as on CPUs (default)",
    "native": "low layers have low types, with Casts only where precisions meet: for engines that compute in them",
}
"""How the low precision gets into the candidates, each an option, with its help."""


_PRECISIONS = "precisions"


class MixtureOptions(Options):
    """Which precisions are mixed, how the search goes, and whether an engine is built and checked."""

    names: Path | None = option(
        "--list",
        type=types.WRITTEN,
        metavar="FILE.txt",
        meaning="write the names of the layers that must be high, one per line, as for nodes_to_exclude, "
        "node_block_list",
    )
    low: Literal["fp16", "bf16", "fp8", "int8"] | None = option(
        rivals="low", flags={f"--{name}": (name, text) for name, text in LOW.items()}, title=_PRECISIONS, meaning=""
    )
    fp8_format: str = option(
        "--fp8-format",
        title=_PRECISIONS,
        choices=("e4m3fn", "e5m2"),
        default="e4m3fn",
        meaning="which float8 (default: e4m3fn)",
    )
    precision: High = option(
        "-p",
        "--precision",
        title=_PRECISIONS,
        choices=("float32", "float16"),
        default="float32",
        meaning="the high precision (default: float32)",
    )
    form: Form | None = option(
        rivals="form", flags={f"--{name}": (name, text) for name, text in _FORMS.items()}, title=_PRECISIONS, meaning=""
    )
    engine: str | None = option(
        "--engine",
        rivals="engine",
        title="check an engine built from the mixed-precision model, instead of the model",
        flags={
            "--trt": (
                "trt",
                "build with TensorRT; {} in the check then stands for the file it writes, and low layers are --native",
            )
        },
        metavar="NAME[:key=value,...]",
        meaning="the same with any engine that writes such files",
    )
    mode: Mode = option(
        "--mode",
        title="the search",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        meaning="minimal: few layers, anywhere, none of which can be low (default); bisect: how many from one end of "
        "the network, by halving; linear: the same, one layer at a time",
    )
    direction: Direction = option(
        "--dir",
        "--direction",
        title="the search",
        choices=("forward", "reverse"),
        default="forward",
        meaning="for bisect and linear: raise the first layers, or the last (default: forward)",
    )
    cost: Cost = option(
        "--cost",
        title="the search",
        choices=("flops", "bytes", "count"),
        default="count",
        meaning="the cost to minimize: the most expensive layers are lowered first (default: count)",
    )


class PrecisionOptions(
    groups.ModelOption,
    groups.OutputOption,
    ReportOption,
    MixtureOptions,
    CheckedOptions,
    checks.ShownOutputOptions,
    checks.RepeatOptions,
    checks.ResumedSearch,
    checks.EventsOption,
    groups.ModelTypeOption,
    groups.WeightsFolderOption,
    groups.WeightsFileOption,
    TensorrtOptions,
):
    """All options of ``debug precision``."""

    @cached_property
    def builder(self) -> str | None:
        """The engine to build with, and its settings. Raises UsageError for TensorRT's settings without ``--trt``."""
        given = self.options_given()
        if not given:
            return self.engine
        if self.engine != "trt":
            raise errors.UsageError(
                f"{given[0]} is a setting of --trt, which is not given",
                next_steps=["--trt", "with --engine, write settings after the name"],
            )
        return EngineSpec("trt", self.settings()).text

    @cached_property
    def artifact(self) -> Path:
        """The file that is checked. Raises UsageError for an engine that writes no file."""
        if self.builder is None:
            return self.iter_artifact or Path(checks.DEFAULT_CANDIDATE)
        saves = [kind for kind in find_class(parse_spec(self.builder).name).capabilities.saves if kind != ".onnx"]
        if not saves:
            raise errors.UsageError(
                f"{self.builder} writes no file of what it builds, so it cannot be checked",
                next_steps=[f"let the check build it: --check biopsy run {{}} {option_line('--engine', self.builder)}"],
            )
        return self.iter_artifact or Path(checks.DEFAULT_CANDIDATE).with_suffix(saves[0])

    @property
    def candidate(self) -> Path:
        """The file that each candidate is written to."""
        return self.artifact if self.builder is None else self.artifact.with_suffix(".onnx")

    def journal(self) -> Path | None:
        """The journal; None without an output, which it is named after. Raises UsageError if it is needed then."""
        if self.output is not None:
            return checks.journal_of(self.output)
        for spelling in self.given(("fresh", "load_debug_replay", "save_debug_replay")):
            raise errors.UsageError(f"{spelling} needs an output", next_steps=["-o mixed.onnx"])
        return None
