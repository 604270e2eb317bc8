"""The options of ``run``, and the user's functions for comparison and postprocessing.

This does not import NumPy, since a reduction imports it before it starts its checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    NoiseOptions,
    OutputOptions,
    RunningOptions,
)
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.engines import RunnableEngines
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


class FunctionOptions(Options, decides="yes", title="functions of your own"):
    """Scripts with functions for comparison and postprocessing."""

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
        """Whether a function is given. Such a run is not served by a warm process."""
        return bool(self.compare_func_script or self.postprocess_func_script)


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
    WeightsFileOptions,
    ReportOption,
    CommandLimits,
):
    """All options of ``biopsy run``."""

    save_onnx: Path | None = option(
        "--save-onnx",
        title="building",
        type=types.WRITTEN,
        meaning="save the model that is run, with the outputs that are returned",
    )
    save_engine: Path | None = option(
        "--save-engine",
        title="building",
        type=types.WRITTEN,
        meaning="save what the engine built: .engine (TensorRT), .xml or .blob (OpenVINO), .ort (ONNX Runtime); MODEL "
        "may be such a file too; one without an ending needs --model-type engine",
    )
    record_memory: int | None = option(
        "--record-memory",
        title="outputs and comparison",
        type=types.byte_size,
        meaning="keep at most this much of an engine's outputs in memory, such as 500MB: they are computed and saved "
        "in batches (--save-outputs must be .safetensors); after an interruption, the same command continues",
    )

    slower: float | None = option(
        "--slower",
        title="speed and memory",
        type=types.ratio,
        metavar="TIMES",
        meaning="fail also if the second of two engines takes at least this many times as long as the first, such as "
        "1.3; both are timed in turn, where they run, with one thread unless they set threads=",
        decides="the greater, the looser",
    )
    larger: float | None = option(
        "--larger",
        title="speed and memory",
        type=types.ratio,
        metavar="TIMES",
        meaning="fail also if the second of two engines needs at least this many times as much memory as the first; "
        "each is measured in processes of its own",
        decides="the greater, the looser",
    )

    @property
    def has_built_model(self) -> bool:
        """Whether the model is a file that an engine has built, by --model-type or else by its ending."""
        return is_built_model(self.model, self.model_type)


def run_parser(program: str = "biopsy") -> Parser:
    """The parser of ``biopsy run``."""
    command = commands.find(["run"])
    assert command is not None
    return parser_of(program, command)


@cache
def options_of(command: OwnRun) -> RunOptions:
    """The options of a ``biopsy run``, parsed once. Raises UsageError."""
    if {*HELP, *VERSION} & {*command.options}:
        raise errors.UsageError("it runs nothing, and shows a text")
    return RunOptions.of(run_parser(Path(command.program).name).parse_known_args(list(command.options))[0])


def own_run(words: Sequence[str] | None) -> RunOptions | None:
    """The options of a check such as ``biopsy run {} ...``; None if it is another command or has invalid options.

    The check itself will report invalid options.
    """
    command = parse(words or ())
    with suppress(errors.BiopsyError):
        return options_of(command) if isinstance(command, OwnRun) else None
    return None


@dataclass(frozen=True)
class Functions:
    """The user's functions for comparison and postprocessing."""

    compare: ComparisonFunction | None = None
    postprocess: Postprocessing | None = None

    def postprocessed(self, results: Sequence[RunnerResult]) -> list[RunnerResult]:
        """The results to compare."""
        if self.postprocess is None:
            return list(results)
        return [replace(self.postprocess(result), declared={}) for result in results]  # it may change types


def functions_of(options: RunOptions, console: Console) -> Functions:
    """Load the user's functions, and warn of options that have no effect with them.

    Raises UsageError if a file or function is missing, or for an option that excludes them; DataError if a file raises.
    """
    if not options.has_functions:
        return Functions()
    from biopsy.comparison.runs import ComparisonFunction
    from biopsy.tensors.user_script import Postprocessing, UserScript

    comparing, postprocessing = "--compare-func-script", "--postprocess-func-script"
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
        path, name = types.parse_script(options.compare_func_script, "compare_outputs")
        compare = ComparisonFunction(UserScript(path, "comparison script", comparing), name)
        for idle in options.given(JudgeOptions.declared):
            console.warn(f"{idle} has no effect: the function of {comparing} decides alone")
    if options.postprocess_func_script:
        path, name = types.parse_script(options.postprocess_func_script, "postprocess_outputs")
        postprocess = Postprocessing(UserScript(path, "postprocessing script", postprocessing), name)
    return Functions(compare, postprocess)
