"""``biopsy data from-torch``: golden values of a model, from the PyTorch module that it was exported from."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from biopsy import errors
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import comparing, types
from biopsy.cli.arguments.groups import FACTORY, ModuleOptions
from biopsy.cli.arguments.types import Derived
from biopsy.cli.console import Console
from biopsy.processes.writing import require_writable
from biopsy.text import count, line_of

EPILOG = f"""\
{FACTORY}

  biopsy data from-torch shop.models:ranker --args inputs.pt -o golden.safetensors
  biopsy debug layers model.onnx --load-outputs golden.safetensors --suspect openvino

A .pt file holds what torch.save wrote: a tuple of arguments, a dictionary of keyword arguments, or one tensor. It is
read with weights_only=True. Other files hold tensors that are named as the parameters of forward, or 0, 1, ...

The module is exported as torch.onnx.export does it, and the model written beside the golden values. --model names one
that you have exported: then only those tensors have a value whose node was translated from the same node."""

_MOST_REASONS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = EPILOG
    ModuleOptions.add(parser)
    parser.add_argument(
        "--model", type=types.READ, metavar="FILE", help="a model that was exported from the module before"
    )
    parser.add_argument(
        "--save-model", type=types.WRITTEN, metavar="FILE",
        help="where the exported model is written; by default model.onnx beside the output, if nothing stands there, "
        "and nowhere with --model",
    )  # fmt: skip
    parser.add_argument(
        "--no-optimize", action="store_true",
        help="export with optimize=False: more tensors have a value; needed with a --model that was exported so",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=types.WRITTEN, required=True, metavar="FILE",
        help="the .safetensors file to write: golden values, and the inputs of the model",
    )  # fmt: skip


def derived_files(args: argparse.Namespace) -> Derived:
    """The model that is written where no place for it is named."""
    written = args.save_model is None and args.model is None
    return {"the exported model": (_saved_model(args) if written else None, types.WRITTEN)}


def _saved_model(args: argparse.Namespace) -> Path | None:
    """Where the model is written; None for nowhere."""
    if args.save_model is not None or args.model is not None:
        saved: Path | None = args.save_model
        return saved
    output: Path = args.output
    return output.with_name("model.onnx")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Export the module, record its values, and say how many tensors have one."""
    from biopsy.torch.loading import surroundings

    with surroundings():
        from biopsy.torch import exporting
        from biopsy.torch.exporting import dynamic_shapes_of
        from biopsy.torch.loading import named_call
        from biopsy.torch.recording import record, require_safetensors

        shapes = comparing.parse_symbolic_shapes(args.dynamic_shapes, "--dynamic-shapes")
        saved = _saved_model(args)
        require_safetensors(args.output)
        for path in (args.output, saved):
            if path is not None:
                require_writable(path)
        if saved is not None and args.save_model is None and saved.exists():
            raise errors.UsageError(
                f"{saved} exists, and is not replaced by a model that you did not name",
                next_steps=[
                    f"{line_of(['--model', str(saved)])}    records for it",
                    f"{line_of(['--save-model', str(saved)])}    replaces it",
                ],
            )
        module, given = named_call(args.factory, args.arguments)
        dynamic_shapes = dynamic_shapes_of(module, given, shapes)
        program = exporting.exported(module, given, dynamic_shapes=dynamic_shapes, optimize=not args.no_optimize)
        model = program if args.model is None else exporting.of_file(args.model, program)
        recording = record(model, given.args, args.output, given.kwargs)
        if saved is not None:
            exporting.save(program, saved)
            console.say(f"{saved}: {count(sum(1 for _ in program.model.graph), 'node')}")
        console.say(f"{recording}, and its inputs")
        for reason, number in Counter(recording.refused.values()).most_common(_MOST_REASONS):
            console.say(f"  {count(number, 'tensor')} without one: {reason}")
        shown = args.model or saved
        line = ["biopsy", "debug", "layers", str(shown), "--load-outputs", str(args.output), "--suspect", "onnxrt"]
        say_advice(console, [Advice(line_of(line), "which layers ONNX Runtime, or another engine, computes otherwise")])
        return 0
