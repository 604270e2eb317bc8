"""From the arguments of a command to what the core takes: model, inputs, golden values, tolerances, and the random
inputs to record values with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments import comparing, groups
from biopsy.cli.arguments.groups import marked_outputs, weights_file
from biopsy.cli.console import Console
from biopsy.comparison.tolerance import Stats, Tolerances
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import Inputs
from biopsy.model import infer
from biopsy.model.extract import OutputChoice, choose_outputs
from biopsy.model.index import index_bytes
from biopsy.model.known_names import require_known
from biopsy.model.load import parse, read_bytes
from biopsy.model.weights_file import save_with_weights
from biopsy.processes import writing
from biopsy.recording.reference_run import Draws
from biopsy.tensors.files import read_feeds, read_results, require_new_folder
from biopsy.tensors.results import Feed, RunnerResult
from biopsy.tensors.user_script import load_script
from biopsy.text import option_line


def model_of(args: argparse.Namespace) -> ModelInput:
    """The model, with other outputs marked if that is asked for."""
    path: Path = args.model
    data = read_bytes(path)
    folder = args.external_data_dir or path.parent
    choice = OutputChoice(
        names=marked_outputs(args), operators=args.onnx_outputs_by_type, without=args.onnx_exclude_outputs
    )
    if choice.changes_nothing:
        return ModelInput(data, folder, path)
    return ModelInput(choose_outputs(data, choice), folder)


def save_model(args: argparse.Namespace, model: ModelInput, console: Console) -> None:
    """Write the model with its outputs as they are returned, if that is asked for. Raises as ``save_with_weights``."""
    if args.save_onnx is None:
        if args.save_external_data is not None:
            raise errors.UsageError("--save-external-data needs a model to save", next_steps=["--save-onnx FILE.onnx"])
        return

    parsed = parse(model.data, args.model)
    infer.type_untyped_outputs(parsed)
    name = weights_file(args, args.save_onnx)
    save_with_weights(parsed, args.save_onnx, model.folder, name, args.external_data_size_threshold)
    console.note(f"model saved to {args.save_onnx}")


def own_outputs(args: argparse.Namespace) -> list[str]:
    """Names of the outputs that the model has in its file."""
    index = index_bytes(read_bytes(args.model))
    return [index.names[tensor] for tensor in index.outputs]


def inputs_of(args: argparse.Namespace) -> Inputs:
    """What the options of ``groups.add_inputs`` say. With golden values, nothing is made up that loaded inputs lack."""
    return Inputs(
        given=given_feeds(args),
        iterations=args.iterations,
        seed=args.seed,
        val_range=comparing.parse_ranges(args.val_range),
        shapes=comparing.parse_open_shapes(args.input_shapes),
        symbols=comparing.parse_symbols(args.input_symbols),
        complete=not getattr(args, "load_outputs", None),
    )


def given_feeds(args: argparse.Namespace) -> Sequence[Feed] | None:
    """The inputs that were loaded or that a script made, files one after the other; None for random ones."""
    if args.load_inputs:
        return list(chain.from_iterable(read_feeds(path) for path in args.load_inputs))
    if args.data_loader_script:
        return list(load_script(*comparing.parse_script(args.data_loader_script)))
    return None


def golden_values(paths: Sequence[Path]) -> list[RunnerResult]:
    """Every runner of every file, named after its file, and after itself where the file has several."""
    found: list[RunnerResult] = []
    if not paths:
        return found

    for path in paths:
        results = read_results(path)
        for result in results:
            name = str(path) if len(results) == 1 else f"{result.runner} in {path}"
            found.append(RunnerResult(name, result.iterations))
    return found


def tolerances_of(args: argparse.Namespace) -> tuple[Tolerances, Stats]:
    """The tolerances, and what is held against them."""
    tolerances = Tolerances(
        comparing.parse_tolerances(args.atol, "--atol"), comparing.parse_tolerances(args.rtol, "--rtol")
    )
    return tolerances, Stats(
        comparing.parse_stats(args.check_error_stat), comparing.parse_quantiles(args.error_quantile)
    )


def require_writable(args: argparse.Namespace) -> None:
    """Raise UsageError now if what is to be saved at the end could not be."""
    if args.record_memory and args.save_outputs and args.save_outputs.suffix != ".safetensors":
        raise errors.UsageError(
            f"--record-memory saves outputs batch by batch, which only .safetensors can: not {args.save_outputs}",
            next_steps=[option_line("--save-outputs", str(args.save_outputs.with_suffix(".safetensors")))],
        )
    for path in (args.save_inputs, args.save_outputs, args.report, args.save_onnx):
        if path is None:
            continue
        if path.suffix or path in (args.report, args.save_onnx):
            writing.require_writable(path)
        else:
            require_new_folder(path)


# The random inputs that a search records values with, as the options of ``groups.add_recorded_inputs`` say.


def draws_of(args: argparse.Namespace) -> Draws:
    """How they are drawn. Raises UsageError for words that are no range."""
    usual = Draws()
    return Draws(
        seed=usual.seed if args.seed is None else args.seed,
        count=args.iterations or usual.count,
        val_range=comparing.parse_ranges(args.val_range),
    )


def require_draws(args: argparse.Namespace, inputs: Iterable[str], *, random: bool, console: Console) -> None:
    """Raise DoesNotFit for a range of an input that does not exist; warn of options on random inputs if none is."""
    require_known("--val-range", "input", draws_of(args).val_range, list(inputs))
    given = groups.draws_given(args)
    if given and not random:
        console.warn(f"{', '.join(given)} has no effect: values are recorded with inputs that are given")
