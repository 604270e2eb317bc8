"""The files of ``biopsy run``: golden values, the model that is saved, and what is written at the end. Importing this
imports what reads and writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.run.options import RunOptions
from biopsy.engines.base import ModelInput
from biopsy.model.infer import type_untyped_outputs
from biopsy.model.load import parse
from biopsy.model.weights_file import save_with_weights
from biopsy.processes import writing
from biopsy.tensors.files import read_results, require_new_folder
from biopsy.tensors.results import RunnerResult
from biopsy.text import option_line


def golden_values(paths: Sequence[Path]) -> list[RunnerResult]:
    """Every runner of every file, named after its file, and after itself where the file has several."""
    runners: list[RunnerResult] = []
    for path in paths:
        results = read_results(path)
        for result in results:
            name = str(path) if len(results) == 1 else f"{result.runner} in {path}"
            runners.append(RunnerResult(name, result.iterations))
    return runners


def save_model(options: RunOptions, model: ModelInput, console: Console) -> None:
    """Write the model with its outputs as they are returned, if that is asked for. Raises as ``save_with_weights``."""
    if options.save_onnx is None:
        if options.save_external_data is not None:
            raise errors.UsageError("--save-external-data needs a model to save", next_steps=["--save-onnx FILE.onnx"])
        return
    parsed = parse(model.data, options.model)
    type_untyped_outputs(parsed)
    weights = options.weights_file(options.save_onnx)
    save_with_weights(parsed, options.save_onnx, model.folder, weights, options.external_data_size_threshold)
    console.note(f"model saved to {options.save_onnx}")


def require_writable(options: RunOptions) -> None:
    """Raise UsageError now if what is to be saved at the end could not be."""
    if options.record_memory and options.save_outputs and options.save_outputs.suffix != ".safetensors":
        raise errors.UsageError(
            f"--record-memory saves outputs batch by batch, which only .safetensors can: not {options.save_outputs}",
            next_steps=[option_line("--save-outputs", str(options.save_outputs.with_suffix(".safetensors")))],
        )
    for path in (options.save_inputs, options.save_outputs, options.report, options.save_onnx):
        if path is None:
            continue
        if path.suffix or path in (options.report, options.save_onnx):
            writing.require_writable(path)
        else:
            require_new_folder(path)
