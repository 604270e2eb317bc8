"""Groups of options that several commands have: the model, its weights, inputs, limits, and the PyTorch module."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, several
from biopsy.processes.own_process import memory
from biopsy.processes.watch import Limits
from biopsy.text import ListOption

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.base import ModelInput
    from biopsy.engines.runner import Inputs
    from biopsy.model.extract import OutputChoice
    from biopsy.recording.reference_run import Draws
    from biopsy.tensors.results import Feed


class ModelOption(Options):
    """The model."""

    model: Path = option(type=types.READ, metavar="MODEL", meaning="the ONNX model{text}")


class OutputOption(Options):
    """The file to write."""

    output: Path | None = option("-o --output", type=types.WRITTEN, meaning="{text}")


class WeightsFolderOption(Options, shared=True, decides="yes", title="the model"):
    """The folder of external weights."""

    external_data_dir: Path | None = option(
        "--external-data-dir --load-external-data --ext",
        type=types.FOLDER_READ,
        meaning="the folder of the external weights (default: the model's folder)",
    )


class MarkedOutputs(Options, decides="yes", title="the model"):
    """The tensors that the model returns."""

    onnx_outputs: Sequence[str] | None = several(
        "--onnx-outputs --outputs",
        metavar="NAME",
        meaning="return these tensors instead of the model's outputs; patterns allowed; 'mark all' returns every "
        "tensor",
    )
    onnx_outputs_by_type: Sequence[str] = several(
        "--onnx-outputs-by-type",
        default=(),
        metavar="OPERATOR",
        meaning="return what these operators compute, such as Conv, instead of the model's outputs",
    )
    onnx_exclude_outputs: Sequence[str] = several(
        "--onnx-exclude-outputs",
        default=(),
        metavar="NAME",
        meaning="do not return these; patterns allowed",
    )

    def choice(self) -> OutputChoice:
        """The outputs to choose."""
        from biopsy.model.extract import OutputChoice

        return OutputChoice(
            names=all_or(self.onnx_outputs), operators=self.onnx_outputs_by_type, without=self.onnx_exclude_outputs
        )


class ModelOptions(ModelOption, MarkedOutputs, WeightsFolderOption):
    """A model to run or convert, and its outputs."""

    def model_input(self) -> ModelInput:
        """The model with the chosen outputs."""
        from biopsy.engines.base import ModelInput
        from biopsy.model.extract import choose_outputs
        from biopsy.model.load import read_bytes

        data = read_bytes(self.model)
        folder = self.external_data_dir or self.model.parent
        choice = self.choice()
        if choice.changes_nothing:
            return ModelInput(data, folder, self.model)
        return ModelInput(choose_outputs(data, choice), folder)


def all_or(names: Sequence[str] | None) -> Literal["all"] | Sequence[str] | None:
    """The given names; "all" for ``mark all``, as in Polygraphy, and for ``*``."""
    return "all" if names in (["mark", "all"], ["*"]) else names


class ModelTypeOption(Options, title="the model"):
    """The type of the model, in commands that take only ONNX models."""

    model_type: str | None = option(
        "--model-type", type=types.model_type("onnx"), metavar="TYPE", meaning="onnx, the only type here"
    )


class BuiltModelTypeOption(Options, title="the model"):
    """The type of the model, in commands that also take the file of a built engine."""

    model_type: str | None = option(
        "--model-type",
        type=types.model_type("onnx", "engine"),
        metavar="TYPE",
        meaning="what MODEL is: onnx, or engine for a file that an engine has built (default: by its ending)",
    )


def is_built_model(model: Path, model_type: str | None) -> bool:
    """Whether the model is a file that an engine has built, by --model-type or else by its ending."""
    if model_type:
        return model_type == "engine"
    return model.suffix in {".engine", ".plan", ".trt", ".blob", ".xml", ".ort"}


class WeightsFileOption(Options, title="weights in files of their own"):
    """Whether weights are written to a separate file."""

    save_external_data: str | None = option(
        "--save-external-data --external-data-path",
        nargs="?",
        const="",
        metavar="FILE",
        meaning="write weights to a file of this name beside the output (default name: OUTPUT.data)",
    )

    def weights_file(self, output: Path) -> str | None:
        """The name of the file for weights beside ``output``; None if they go into the model file."""
        from biopsy.model.weights_file import default_name

        if self.save_external_data == "":
            return default_name(output)
        return None if self.save_external_data is None else os.path.normpath(self.save_external_data)

    def derived_weights(self, output: Path | None) -> types.Derived:
        """The file for weights, for ``derived_files`` of a command."""
        name = None if output is None else self.weights_file(output)
        return {"--save-external-data": (output.with_name(name) if output and name else None, types.WRITTEN)}


class WeightsFileOptions(WeightsFileOption, title="weights in files of their own"):
    """Whether weights are written to a separate file, and which of them."""

    external_data_size_threshold: int = option(
        "--external-data-size-threshold",
        type=types.binary_size,
        default=1024,
        meaning="with --save-external-data: smaller weights stay in the model file; bytes, or KiB, MiB or GiB as in "
        "16K, 16M or 1G (default: 1024)",
    )


def _iterations(default: int | None) -> Any:
    return option(
        "--iterations --iters",
        type=types.positive,
        default=default,
        meaning=f"how many random inputs to make (default: {default or '2, which is the minimum'})",
    )


def _seed(default: int | None) -> Any:
    return option(
        "--seed",
        type=types.count,
        default=default,
        meaning="seed of random inputs (default: 1)",
    )


class RecordedInputs(Options, shared=True, decides="yes", title="the model"):
    """The inputs with which a search records values: loaded, from a script, or random."""

    load_inputs: Sequence[Path] | None = several(
        "--load-inputs --load-input-data",
        rivals="source",
        type=types.READ,
        text="load inputs from these files, one after the other; tensors that the model does not take are ignored",
        meaning="{text}",
    )
    data_loader_script: str | None = option(
        "--data-loader-script",
        rivals="source",
        type=types.READ_SCRIPT,
        metavar="FILE.py[:function]",
        shared=False,
        meaning="a Python function that yields dictionaries of arrays (default: load_data)",
    )
    iterations: int | None = _iterations(None)
    seed: int | None = _seed(None)
    val_range: Sequence[str] | None = several(
        "--val-range",
        metavar="[NAME:][lo,hi]",
        meaning="range of the random values, for all inputs or one of them (default: [0,1])",
    )

    def given_feeds(self) -> Sequence[Feed] | None:
        """The inputs from files or from a script; None for random ones."""
        from biopsy.tensors.files import read_feeds
        from biopsy.tensors.user_script import load_script

        if self.load_inputs:
            return list(chain.from_iterable(read_feeds(path) for path in self.load_inputs))
        if self.data_loader_script:
            return list(load_script(*types.parse_script(self.data_loader_script)))
        return None

    def sources_given(self) -> dict[str, Any]:
        """The options for the source of inputs that were given, with their values."""
        return self.given([name for name, field in RecordedInputs.declared.items() if field and field.rivals])

    def draws_given(self) -> dict[str, Any]:
        """The options for random inputs that were given, with their values."""
        return self.given([name for name, field in RecordedInputs.declared.items() if field and not field.rivals])

    def draws(self) -> Draws:
        """How random inputs are drawn. Raises UsageError for an invalid range."""
        from biopsy.recording.reference_run import Draws

        usual = Draws()
        return Draws(
            seed=usual.seed if self.seed is None else self.seed,
            count=self.iterations or usual.count,
            val_range=types.parse_ranges(self.val_range),
        )

    def require_draws(self, inputs: Sequence[str], *, random: bool, console: Console) -> None:
        """Raise DoesNotFit for a range of an unknown input; warn of options that have no effect unless ``random``."""
        from biopsy.model.known_names import require_known

        require_known("--val-range", "input", self.draws().val_range, inputs)
        given = self.draws_given()
        if given and not random:
            console.warn(f"{', '.join(given)} has no effect: values are recorded with inputs that are given")


_INPUTS = "inputs (default: random ones, the same for the same seed)"


class FallbackInputs(RecordedInputs, shared=True, decides="yes"):
    """The inputs of the run that types and shapes are taken from."""

    iterations: int | None = _iterations(1)


class InputOptions(RecordedInputs, shared=True, decides="yes", title=_INPUTS):
    """The inputs of a run: loaded, from a script, or random."""

    iterations: int | None = _iterations(1)
    seed: int | None = _seed(1)
    input_shapes: Sequence[str] | None = several(
        "--input-shapes --inputs --model-input-shapes --model-inputs",
        metavar="NAME:[d0,d1,...]",
        meaning="shapes of the random inputs, where the model leaves them open",
    )
    input_symbols: Sequence[str] | None = several(
        "--input-symbols",
        metavar="NAME=SIZE",
        meaning="sizes of the open dimensions of random inputs, by their names in the model",
    )
    load_outputs: Sequence[Path] | None = None

    def inputs(self) -> Inputs:
        """The inputs. With golden values, no random values are made for tensors that loaded inputs lack."""
        from biopsy.engines.runner import Inputs

        return Inputs(
            given=self.given_feeds(),
            iterations=self.iterations or 1,
            seed=self.seed or 0,
            val_range=types.parse_ranges(self.val_range),
            shapes=types.parse_open_shapes(self.input_shapes),
            symbols=types.parse_symbols(self.input_symbols),
            complete=not self.load_outputs,
        )

    def making(self) -> Iterator[ListOption]:
        """The options in ``MAKING`` that were given, as they are typed."""
        return self.as_typed(MAKING)


MAKING = ("data_loader_script", "iterations", "seed", "val_range", "input_shapes")
"""The fields that say how inputs are made."""


class SavedInputOptions(InputOptions, title=_INPUTS):
    """The inputs of a run, and the file to save them to."""

    save_inputs: Path | None = option(
        "--save-inputs --save-input-data", type=types.WRITTEN, meaning=f"save the inputs used: {types.SAVED_FORMATS}"
    )


MOST_OF_THE_MEMORY = 0.9
"""Default of --memory-limit, as a part of the memory of the machine or its container."""

MORE_MEMORY = "--run-memory SIZE    for an engine that needs more"


class CommandLimits(Options, title="limits of the command"):
    """The time and the memory that a command may use."""

    timeout: float | None = option(
        "--timeout",
        type=types.duration,
        meaning="end the command, with status 4, if it takes longer: 90s, 10m, 1h (default: {text})",
    )
    memory_limit: int | None = option(
        "--memory-limit",
        type=types.byte_size,
        meaning="end the command, with status 4, if its processes together use more memory than this, such as 4GB; "
        "weights that are mapped from a file do not count (default: "
        f"{MOST_OF_THE_MEMORY:.0%}% of the machine's memory)",
    )

    @property
    def has_limits(self) -> bool:
        """Whether a limit is given."""
        return self.timeout is not None or self.memory_limit is not None

    def limits_of_command(self, default: str) -> Limits:
        """The limits of the command; ``default``: its timeout. Raises UsageError if limits cannot be enforced here."""
        from biopsy.processes import supervised

        if self.has_limits and not supervised.is_possible():
            raise errors.UsageError("--timeout and --memory-limit need a second process, which cannot be forked here")
        seconds = types.duration(default) if self.timeout is None and default else self.timeout
        return Limits(seconds=seconds, memory=self.memory_limit or int(MOST_OF_THE_MEMORY * memory()))


class RunLimits(Options, title="limits of a run"):
    """The time and the memory that an engine may use in one run."""

    run_timeout: float | None = option("--run-timeout", type=types.duration, meaning="end a run that takes longer")
    run_memory: int | None = option(
        "--run-memory",
        type=types.byte_size,
        meaning="end a run that uses more memory, such as 16GB; weights that are mapped from a file do not count "
        "(default: 64 times the bytes of the model, its weights and its inputs, plus 1.5GB, or 8GB for engines other "
        "than onnxrt, openvino and reference)",
    )


FACTORY = """\
FACTORY is a function without parameters in a module of yours, imported from the current folder. It returns a
torch.nn.Module in evaluation mode, or that and a tuple of arguments to call it with, or also a dictionary of keyword
arguments."""
"""For the end of a help text."""


class ModuleOptions(Options):
    """The PyTorch module, its arguments, and its dynamic shapes."""

    factory: str = option(metavar="PKG.MOD:FACTORY", meaning="a function of yours that makes the module")
    arguments: Path | None = option(
        "--args",
        type=types.READ,
        meaning="the arguments of the module: .pt (read with weights_only=True), .safetensors, .npz or .json (default: "
        "those that FACTORY returns)",
    )
    dynamic_shapes: Sequence[str] | None = several(
        "--dynamic-shapes",
        metavar="NAME:[d0,d1,...]",
        meaning="shapes of arguments with dimensions to export as dynamic: a name or -1 for each of them, and the "
        "size of the others, as in x:[batch,8]; NAME is a parameter of forward",
    )
