"""``biopsy data from-torch``: records golden values of a model with the PyTorch module that it was exported from."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from biopsy import errors
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.groups import FACTORY, ModuleOptions
from biopsy.cli.arguments.types import Derived
from biopsy.cli.console import Console
from biopsy.processes.writing import require_writable
from biopsy.text import count, line_of
from biopsy.torch import exporting
from biopsy.torch.calls import named_call, surroundings
from biopsy.torch.recording import record, require_safetensors

EPILOG = f"""\
{FACTORY}

  biopsy data from-torch shop.models:ranker --args inputs.pt -o golden.safetensors
  biopsy debug layers model.onnx --load-outputs golden.safetensors --suspect openvino

A .pt file holds what torch.save wrote: a tuple of arguments, a dictionary of keyword arguments, or one tensor. It is
read with weights_only=True. Other files hold tensors that are named as the parameters of forward, or 0, 1, ...

The module is exported with torch.onnx.export, and the model is written beside the golden values. With --model, values
are recorded for a model that you have exported: only for tensors of nodes that were translated from the same node."""

_MOST_REASONS = 3


class FromTorchOptions(ModuleOptions):
    """All options of ``data from-torch``."""

    model: Path | None = option("--model", type=types.READ, meaning="a model that was exported from the module before")
    save_model: Path | None = option(
        "--save-model",
        type=types.WRITTEN,
        meaning="write the exported model to this file (default: a new model.onnx beside the output, or none with "
        "--model)",
    )
    no_optimize: bool = switch(
        "--no-optimize",
        meaning="export with optimize=False: more tensors get a value; needed if --model was exported in this way",
    )
    output: Path = option(
        "-o",
        "--output",
        type=types.WRITTEN,
        required=True,
        meaning="the .safetensors file to write: golden values, and the inputs of the model",
    )

    @property
    def usual_model(self) -> Path | None:
        """The default file for the exported model; None if an option names the file or a model."""
        return self.output.with_name("model.onnx") if self.save_model is None and self.model is None else None

    def derived(self) -> Derived:
        """The default file for the exported model."""
        return {"the exported model": (self.usual_model, types.WRITTEN)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    FromTorchOptions.add(parser)


derived_files = FromTorchOptions.reading(FromTorchOptions.derived)


@FromTorchOptions.reading
def execute(options: FromTorchOptions, console: Console) -> int:
    """Export the module, record its values, and show how many tensors have one."""
    with surroundings():
        shapes = types.parse_symbolic_shapes(options.dynamic_shapes, "--dynamic-shapes")
        usual, output = options.usual_model, options.output
        saved = options.save_model or usual
        require_safetensors(output)
        for path in filter(None, (output, saved)):
            require_writable(path)
        if usual is not None and usual.exists():
            raise errors.UsageError(
                f"{usual} exists, and is not replaced by a model that you did not name",
                next_steps=[
                    f"{line_of(['--model', str(usual)])}    records for it",
                    f"{line_of(['--save-model', str(usual)])}    replaces it",
                ],
            )
        module, given = named_call(options.factory, options.arguments)
        dynamic_shapes = exporting.dynamic_shapes_of(module, given, shapes)
        program = exporting.export(module, given, dynamic_shapes=dynamic_shapes, optimize=not options.no_optimize)
        model = program if options.model is None else exporting.read_exported(options.model, program)
        recording = record(model, given.args, output, given.kwargs)
        if saved is not None:
            exporting.save(program, saved)
            console.say(f"{saved}: {count(sum(1 for _ in program.model.graph), 'node')}")
        console.say(f"{recording}, and its inputs")
        for reason, number in Counter(recording.refused.values()).most_common(_MOST_REASONS):
            console.say(f"  {count(number, 'tensor')} without one: {reason}")
        model_file = str(options.model or saved)
        line = ["biopsy", "debug", "layers", model_file, "--load-outputs", str(output), "--suspect", "onnxrt"]
        say_advice(console, [Advice(line_of(line), "which layers ONNX Runtime, or another engine, computes otherwise")])
        return 0
