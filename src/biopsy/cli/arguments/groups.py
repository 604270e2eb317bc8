"""Groups of options that several commands have: the model, its weights, inputs, and the PyTorch module that a model
comes from. Values are parsed when they are used.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from biopsy.cli.arguments import types

SAVED_FORMATS = ".json (as Polygraphy), .npz, .safetensors, or a folder"
"""Where inputs and outputs are saved."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, its weights' folder, and the outputs to mark."""
    parser.add_argument("model", type=types.READ, metavar="MODEL", help="the ONNX model")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--onnx-outputs",
        "--outputs",
        nargs="+",
        metavar="NAME",
        help="return these tensors instead of the model's outputs; patterns allowed; 'mark all' returns every tensor",
    )
    group.add_argument(
        "--onnx-outputs-by-type",
        nargs="+",
        default=(),
        metavar="OPERATOR",
        help="return what these operators compute, such as Conv, instead of the model's outputs",
    )
    group.add_argument(
        "--onnx-exclude-outputs", nargs="+", default=(), metavar="NAME", help="do not return these; patterns allowed"
    )
    add_weights_folder(group)


def add_model_type(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, or_engine: bool = False) -> None:
    """``--model-type`` of a command that takes ONNX models, ``or_engine``: or what an engine has built."""
    known = ("onnx", "engine") if or_engine else ("onnx",)
    built = "what MODEL is: onnx, or engine for what an engine has built (default: by its name)"
    meaning = built if or_engine else "onnx, the only type here"
    parser.add_argument("--model-type", type=types.model_type(*known), metavar="TYPE", help=meaning)


def add_weights_folder(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Where to find external weights, into ``args.external_data_dir``."""
    parser.add_argument(
        "--external-data-dir",
        "--load-external-data",
        "--ext",
        type=types.FOLDER_READ,
        metavar="DIR",
        help="the folder of the external weights (default: the model's folder)",
    )


def add_weights_file(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Whether to write weights into a file of their own: see ``weights_file``."""
    parser.add_argument(
        "--save-external-data",
        "--external-data-path",
        nargs="?",
        const="",
        metavar="FILE",
        help="write weights to a file of this name beside the output (default name: OUTPUT.data)",
    )


def add_weights_threshold(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Which weights go into that file, into ``args.external_data_size_threshold``."""
    parser.add_argument(
        "--external-data-size-threshold",
        type=types.binary_size,
        default=1024,
        metavar="SIZE",
        help="with --save-external-data: smaller weights stay in the model file; bytes, or KiB, MiB or GiB as in 16K,"
        " 16M or 1G (default: 1024)",
    )


def weights_file(args: argparse.Namespace, output: Path) -> str | None:
    """The name of the file for weights beside ``output``; None if they go inside."""
    from biopsy.model.weights_file import default_name

    asked: str | None = args.save_external_data
    if not asked:
        return asked if asked is None else default_name(output)
    return os.path.normpath(asked)


def derived_weights(args: argparse.Namespace, dest: str = "output") -> types.Derived:
    """The file for weights beside the one that ``dest`` names, by ``weights_file``, as one that is written."""
    output: Path | None = getattr(args, dest)
    name = None if output is None else weights_file(args, output)
    return {"--save-external-data": (output.with_name(name) if output and name else None, types.WRITTEN)}


def marked_outputs(args: argparse.Namespace) -> Literal["all"] | Sequence[str] | None:
    """What --onnx-outputs asks for."""
    names: Sequence[str] | None = args.onnx_outputs
    return "all" if names in (["mark", "all"], ["*"]) else names


def add_inputs(parser: argparse.ArgumentParser, *, saved: bool = True) -> None:
    """Where inputs come from, and, if they can be ``saved``, where they go."""
    group = parser.add_argument_group("inputs (default: random ones, the same for the same seed)")
    _add_source(
        group, "load inputs from these files, one after the other; tensors that the model does not take are ignored"
    )
    _add_draws(group, iterations=1, seed=1)
    group.add_argument(
        "--input-shapes",
        "--inputs",
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        help="shapes of the random inputs, where the model leaves them open",
    )
    group.add_argument(
        "--input-symbols",
        nargs="+",
        metavar="NAME=SIZE",
        help="sizes of the open dimensions of random inputs, by their names in the model",
    )
    if not saved:
        return
    group.add_argument(
        "--save-inputs",
        "--save-input-data",
        type=types.WRITTEN,
        metavar="FILE",
        help=f"save the inputs used: {SAVED_FORMATS}",
    )


def add_recorded_inputs(group: argparse._ArgumentGroup, meaning: str) -> None:
    """Where the inputs come from that a search records values with, random ones of them too."""
    _add_source(group, meaning)
    _add_draws(group, iterations=None, seed=None)


def add_fallback_inputs(group: argparse._ArgumentGroup) -> None:
    """The inputs of the one run that types and shapes are taken from."""
    _add_source(group, "the run that types and shapes are taken from has the first of these inputs")
    _add_draws(group, iterations=1, seed=None)


def draws_given(args: argparse.Namespace) -> dict[str, object]:
    """The options of ``add_recorded_inputs`` on random inputs that were given, with their values."""
    draws = {"--seed": args.seed, "--iterations": args.iterations, "--val-range": args.val_range}
    return {option: value for option, value in draws.items() if value is not None}


def _add_source(group: argparse._ArgumentGroup, meaning: str) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--load-inputs", "--load-input-data", nargs="+", type=types.READ, metavar="FILE", help=meaning)
    source.add_argument(
        "--data-loader-script",
        type=types.READ_SCRIPT,
        metavar="FILE.py[:function]",
        help="a Python function that yields dictionaries of arrays (default: load_data)",
    )


def _add_draws(group: argparse._ArgumentGroup, iterations: int | None, seed: int | None) -> None:
    group.add_argument(
        "--iterations",
        "--iters",
        type=types.positive,
        default=iterations,
        metavar="N",
        help=f"how many random inputs to make (default: {iterations or '2, which is the least'})",
    )
    group.add_argument("--seed", type=types.count, default=seed, metavar="N", help="seed of random inputs (default: 1)")
    group.add_argument(
        "--val-range",
        nargs="+",
        metavar="[NAME:][lo,hi]",
        help="range of the random values, for all inputs or one of them (default: [0,1])",
    )


# A PyTorch module on a command line: the function of the user's that makes it, and what it is called with.

FACTORY = """\
FACTORY is a function without parameters in a module of yours, imported from the current folder. It returns a
torch.nn.Module in evaluation mode, or that and a tuple of arguments to call it with, or also a dictionary of keyword
arguments."""
"""For the end of a help text."""


def add_module(parser: argparse.ArgumentParser) -> None:
    """``PKG.MOD:FACTORY``, ``--args`` and ``--dynamic-shapes``, as ``factory``, ``arguments``, ``dynamic_shapes``."""
    parser.add_argument("factory", metavar="PKG.MOD:FACTORY", help="a function of yours that makes the module")
    parser.add_argument(
        "--args",
        dest="arguments",
        type=types.READ,
        metavar="FILE",
        help="what the module is called with: .pt (read with weights_only=True), .safetensors, .npz or .json; by "
        "default what FACTORY gives",
    )
    parser.add_argument(
        "--dynamic-shapes",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        help="which sizes of which arguments are exported as open ones: a name or -1 for each open one, and for others "
        "their number, as x:[batch,8]; NAME is a parameter of forward",
    )
