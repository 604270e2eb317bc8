"""The options of ``run``, and the functions of the user's that judge outputs or change them before. NumPy is not
imported: every check of a reduction may be such a command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import HELP, VERSION
from biopsy.cli import commands
from biopsy.cli.arguments import types
from biopsy.cli.arguments.comparing import (
    JudgeOptions,
    MetricOptions,
    NoiseOptions,
    OutputOptions,
    RunningOptions,
    ToleranceOptions,
    parse_script,
)
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.engines import EngineOptions, PackageOptions, RunnableEngines, TensorrtOptions
from biopsy.cli.arguments.groups import (
    BuiltModelTypeOption,
    CommandLimits,
    ModelOptions,
    SavedInputOptions,
    WeightsFileOptions,
    is_built_model,
)
from biopsy.cli.parser import Parser, parser_of
from biopsy.cli.report import ReportOption

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.comparison.runs import ComparisonFunction
    from biopsy.tensors.results import RunnerResult
    from biopsy.tensors.user_script import Postprocessing

_SCRIPT = "FILE.py[:function]"


class FunctionOptions(Options, decides="yes"):
    """Functions of the user's."""

    compare_func_script: str | None = option(
        "--compare-func-script",
        type=types.READ_SCRIPT,
        metavar=_SCRIPT,
        meaning="a Python function that takes the outputs of an iteration and those expected, both as dictionaries, "
        "and returns True or False, or a dictionary of these by output; it decides alone (default: compare_outputs)",
    )
    postprocess_func_script: str | None = option(
        "--postprocess-func-script",
        type=types.READ_SCRIPT,
        metavar=_SCRIPT,
        meaning="a Python function that takes the outputs of an iteration and returns those to compare; golden values "
        "pass through it too (default: postprocess_outputs)",
    )

    @property
    def has_functions(self) -> bool:
        """Whether any is given: such a run is no fork of a process that has loaded its files before."""
        return bool(self.compare_func_script or self.postprocess_func_script)


class SavedModelOption(Options):
    """Where the model is saved that is run."""

    save_onnx: Path | None = option(
        "--save-onnx", type=types.WRITTEN, meaning="save the model that is run, with the outputs that are returned"
    )


class SavedEngineOption(Options):
    """Where an engine is saved that was built."""

    save_engine: Path | None = option(
        "--save-engine",
        type=types.WRITTEN,
        meaning="save what the engine built: .engine (TensorRT), .xml or .blob (OpenVINO), .ort (ONNX Runtime); MODEL "
        "may be such a file, or with --model-type engine one without an ending",
    )


class RecordMemoryOption(Options):
    """How much of the outputs stays in memory."""

    record_memory: int | None = option(
        "--record-memory",
        type=types.byte_size,
        metavar="SIZE",
        meaning="keep at most this much of an engine's outputs in memory, such as 500MB: they are computed and saved "
        "in batches (--save-outputs must be .safetensors); after an interruption, the same command continues",
    )


class RunOptions(
    ModelOptions,
    RunnableEngines,
    SavedInputOptions,
    OutputOptions,
    JudgeOptions,
    RunningOptions,
    NoiseOptions,
    FunctionOptions,
    BuiltModelTypeOption,
    SavedModelOption,
    WeightsFileOptions,
    SavedEngineOption,
    ReportOption,
    RecordMemoryOption,
    CommandLimits,
):
    """All options of ``biopsy run``."""

    words: Sequence[str] = ()

    @property
    def has_built_model(self) -> bool:
        """Whether the model is what an engine has built: as --model-type says, else by its name."""
        return is_built_model(self.model, self.model_type)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``, but for those of Polygraphy that it does not have."""
    ModelOptions.add_group(parser)
    EngineOptions.add_groups(parser)
    PackageOptions.add(
        parser.add_argument_group("other releases"), packages="run the engines of this package from this release of it"
    )
    SavedInputOptions.add_group(parser)
    group = parser.add_argument_group("outputs and comparison")
    OutputOptions.add(group)
    ToleranceOptions.add(group)
    RunningOptions.add(group)
    MetricOptions.add_group(parser)
    NoiseOptions.add(parser.add_argument_group("a bug, or only rounding"))
    FunctionOptions.add(parser.add_argument_group("functions of your own"))
    group = parser.add_argument_group("building")
    BuiltModelTypeOption.add(group)
    SavedModelOption.add(group)
    WeightsFileOptions.add(group)
    RunnableEngines.add(group, only=["build_only"])
    SavedEngineOption.add(group)
    group = parser.add_argument_group("report and memory")
    ReportOption.add(group)
    RecordMemoryOption.add(group)
    TensorrtOptions.add_tensorrt(parser)


# The same for a check that is ``biopsy run``, from its words.


def run_parser(program: str = "biopsy") -> Parser:
    """The parser of ``biopsy run``."""
    command = commands.find(["run"])
    assert command is not None
    return parser_of(program, command)


@cache
def options_of(command: OwnRun) -> RunOptions:
    """What the words of a ``biopsy run`` say, parsed once. Raises UsageError."""
    if {*HELP, *VERSION} & {*command.options}:
        raise errors.UsageError("it runs nothing, and shows a text")
    return RunOptions.of(run_parser(Path(command.program).name).parse_known_args(list(command.options))[0])


def own_run(words: Sequence[str] | None) -> RunOptions | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong.

    The check itself will tell what is wrong with it.
    """
    command = parse(words or ())
    with suppress(errors.BiopsyError):
        return options_of(command) if isinstance(command, OwnRun) else None
    return None


@dataclass(frozen=True)
class Functions:
    """The functions that were given."""

    compare: ComparisonFunction | None = None
    postprocess: Postprocessing | None = None

    def postprocessed(self, results: Sequence[RunnerResult]) -> list[RunnerResult]:
        """The results as they are to be compared."""
        return list(results) if self.postprocess is None else [self.postprocess(result) for result in results]


def functions_of(options: RunOptions, console: Console) -> Functions:
    """Load the functions that were given, and warn of options that they make idle.

    Raises UsageError for a file or function that is not there, or an option that excludes them; DataError if the file
    raises anything.
    """
    if not options.has_functions:
        return Functions()
    from biopsy.comparison.runs import ComparisonFunction
    from biopsy.tensors.user_script import Postprocessing, UserScript

    comparing, postprocessing = FunctionOptions.spellings()
    given = comparing if options.compare_func_script else postprocessing
    if options.compare_with:
        raise errors.UsageError(
            f"--compare-with {options.compare_with} judges the outputs as they are: it goes without {given}",
            next_steps=["leave out one of them"],
        )
    if options.build_only:
        raise errors.UsageError(f"--build-only runs nothing, so that {given} has nothing to do")
    if options.postprocess_func_script and options.record_memory:
        raise errors.UsageError(f"{postprocessing} needs all outputs in memory: it goes without --record-memory")
    compare = postprocess = None
    if options.compare_func_script:
        path, name = parse_script(options.compare_func_script, "compare_outputs")
        compare = ComparisonFunction(UserScript(path, "comparison script", comparing), name)
        for idle in options.given(JudgeOptions.declared):
            console.warn(f"{idle} has no effect: the function of {comparing} decides alone")
    if options.postprocess_func_script:
        path, name = parse_script(options.postprocess_func_script, "postprocess_outputs")
        postprocess = Postprocessing(UserScript(path, "postprocessing script", postprocessing), name)
    return Functions(compare, postprocess)
