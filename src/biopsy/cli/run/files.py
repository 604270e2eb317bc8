"""The files of ``biopsy run``, and checks that the names on its command line are in the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments.types import parse_open_shapes, parse_ranges
from biopsy.cli.console import Console
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.tolerance import names_by_option, require_known_outputs
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import require_inputs_of
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.infer import type_untyped_outputs
from biopsy.model.known_names import may_lack_names
from biopsy.model.load import parse
from biopsy.model.weights_file import save_with_weights
from biopsy.processes import writing
from biopsy.tensors.files import read_feeds, read_results, require_new_folder
from biopsy.tensors.results import RunnerResult
from biopsy.tensors.types import fixed_names, item_of
from biopsy.text import option_line


def golden_values(paths: Sequence[Path]) -> list[RunnerResult]:
    """The runners of all files, named after the file, or "RUNNER in FILE" if a file has several."""
    runners: list[RunnerResult] = []
    for path in paths:
        results = read_results(path)
        for result in results:
            name = str(path) if len(results) == 1 else f"{result.runner} in {path}"
            runners.append(RunnerResult(name, result.iterations))
    return runners


def save_model(options: RunOptions, model: ModelInput, console: Console) -> None:
    """Write the model with the chosen outputs, for --save-onnx. Raises UsageError and as ``save_with_weights``."""
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
    """Raise UsageError if a file that the run will write could not be written."""
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


def require_known_names(options: RunOptions, model: ModelInput, used: Mapping[str, Iterable[str]]) -> None:
    """Raise DoesNotFit if an option names an output that the model lacks; ``used`` are the names by option.

    With golden values, inputs may be named too, since they can be compared. The names in a built engine are unknown.
    """
    if may_lack_names() or options.has_built_model or not any(name for names in used.values() for name in names):
        return
    try:
        index = index_bytes(model.data, model.folder)
    except errors.ModelError:
        return  # the engine says what is wrong with it

    def names_of(tensors: Iterable[int]) -> list[str]:
        return [name for number in tensors for name in fixed_names(index.names[number], index.value_type(number))]

    outputs = names_of(index.outputs)
    inputs = names_of(index.inputs) if options.load_outputs else ()
    require_known_outputs(used, dict.fromkeys((*outputs, *inputs)), outputs)


_MAX_BYTES = 32_000_000
"""Larger files are not read for the names in them, unless they can be mapped."""


def require_names_of_check(
    own_run: RunOptions | None, index: ModelIndex, files: Iterable[Path] = (), made_anew: Path | None = None
) -> None:
    """Raise DoesNotFit or CannotCompare if a check that is ``biopsy run``, or its inputs, are for another model.

    This looks for names that no tensor of the original has. The check itself cannot: candidates lack most tensors.
    ``files`` are further inputs, which may hold inner tensors too; ``made_anew`` is a file of inputs that is written
    for each candidate. Missing files, and large ones that cannot be mapped, are left to the check.
    """
    if own_run is not None:
        try:
            used: dict[str, Iterable[str]] = names_by_option(*own_run.limits())
            used["--noise-ratio"] = own_run.noise_ratios()
            used["--input-shapes"] = parse_open_shapes(own_run.input_shapes)
            used["--val-range"] = parse_ranges(own_run.val_range)
        except errors.UsageError:
            used = {}  # the check itself will report it
        items = {name for names in used.values() for name in names if name and item_of(name, index.ids) is not None}
        computed = [index.names[tensor] for tensor in (*index.outputs, *index.producer)]
        require_known_outputs(used, {**index.ids, **dict.fromkeys(items)}, dict.fromkeys(computed))
        files = (*files, *(path for path in own_run.load_inputs or () if path != made_anew))
    wanted = [index.names[tensor] for tensor in index.fed_inputs()]
    for file in files:
        if file.is_file() and (file.suffix == ".safetensors" or file.stat().st_size < _MAX_BYTES):
            for feed in read_feeds(file):
                require_inputs_of(wanted, feed, index.ids)
