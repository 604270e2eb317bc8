"""``biopsy surgeon extract``: cuts a subgraph out of a model."""

from __future__ import annotations

import argparse
from collections.abc import Container, Mapping, Sequence

from biopsy import errors
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.types import parse_symbolic_shapes
from biopsy.cli.console import Console
from biopsy.cli.model_files import FALLBACK, ChangeOptions, FallbackOptions
from biopsy.model import parts
from biopsy.model.extract import Auto, Inference, Wanted, extract, mark_outputs
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import ELEM_OF_DTYPE, Shape, TensorType
from biopsy.text import did_you_mean

EPILOG = """\
examples:
  biopsy surgeon extract model.onnx -o part.onnx --inputs x:[1,3,8,8]:float32 --outputs z:auto
  biopsy surgeon extract model.onnx -o part.onnx --inputs /layer4/add:auto:auto     (to the model's own outputs)
  biopsy surgeon extract model.onnx -o part.onnx --outputs /layer4/add              (from the model's own inputs)"""

_ALSO_CALLED = {"float": "float32", "double": "float64", "half": "float16", "boolean": "bool", "str": "string"}


class ExtractOptions(ChangeOptions, FallbackOptions):
    """All options of ``surgeon extract``."""

    inputs: Sequence[str] | None = option(
        "--inputs",
        nargs="*",
        metavar="NAME:SHAPE:TYPE",
        meaning="inputs of the part; SHAPE and TYPE may be auto (default: the model's own)",
    )
    outputs: Sequence[str] | None = option(
        "--outputs", nargs="+", metavar="NAME:TYPE", meaning="outputs of the part (default: the model's own)"
    )

    def inference(self, data: bytes, console: Console) -> Inference:
        """How the types and shapes of the model ``data`` are found. Raises UsageError for invalid shapes."""
        self.warn_of_idle_options(console, runs=not self.no_shape_inference)
        types_of = self.types_in_run(self.folder, console)

        def run(names: Sequence[str]) -> Mapping[str, TensorType]:
            marked = mark_outputs(data, names)
            if self.force_fallback_shape_inference:
                return types_of(marked)
            try:
                types = types_of(marked)
            except errors.BiopsyError as error:
                console.note(f"  {error.message}")
                return {}
            listed = ", ".join(map(repr, names))
            console.warn(f"the type of {listed} is taken from a run of the model: its dimensions are fixed")
            return types

        return Inference(infers=not self.no_shape_inference, run=run, runs_always=self.force_fallback_shape_inference)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon extract``."""
    ExtractOptions.add(
        parser,
        shape_inference="what is auto is inferred anyway",
        no_shape_inference="take only what the model declares",
        force_fallback_shape_inference=" (without this, a run is made if a type cannot be inferred)",
        load_inputs=FALLBACK,
    )


derived_files = ExtractOptions.reading(ExtractOptions.derived)


@ExtractOptions.reading
def execute(options: ExtractOptions, console: Console) -> int:
    """Extract the part, write it, and show what was kept."""
    data = options.read()
    index = index_bytes(data, options.folder)
    inputs = None if options.inputs is None else [parse_input(text, index.ids) for text in options.inputs]
    outputs = None if options.outputs is None else [parse_output(text, index.ids) for text in options.outputs]
    part = extract(index, inputs, outputs, options.inference(data, console))
    shown = [
        ", ".join(f"{info.name} {parts.tensor_type(info.SerializeToString()) or ''}".strip() for info in infos)
        for infos in (part.graph.input, part.graph.output)
    ]
    kept = len(part.graph.node)
    options.save(part, data, console, at_fault=["do --inputs and --outputs give the types that the tensors have?"])
    console.say(f"{kept} of {len(index.nodes)} nodes are in {options.output}")
    console.note(f"  inputs   {shown[0] or 'none'}")
    console.note(f"  outputs  {shown[1]}")
    return 0


def parse_input(text: str, known: Container[str]) -> Wanted:
    """An input from ``NAME:SHAPE:TYPE``, ``NAME:SHAPE`` or ``NAME``; NAME may contain colons. Raises UsageError."""
    if text in known:
        return Wanted(text)
    name, _, last = text.rpartition(":")
    if last.startswith("[") and name in known:
        return Wanted(name, _shape(last, text))
    name, _, shape = name.rpartition(":")
    if not name:
        raise errors.UsageError(
            f"--inputs takes NAME:SHAPE:TYPE, as in x:[1,3,8,8]:float32 or x:auto:auto; got {text!r}"
        )
    return Wanted(name, _shape(shape, text), _elem(last, text))


def parse_output(text: str, known: Container[str]) -> Wanted:
    """An output from ``NAME:TYPE`` or ``NAME``. Raises UsageError if the type is unknown."""
    if text in known or ":" not in text:
        return Wanted(text)
    name, _, last = text.rpartition(":")
    if name.endswith(":auto") and name.removesuffix(":auto") in known:  # NAME:SHAPE:TYPE, as for inputs
        name = name.removesuffix(":auto")
    return Wanted(name, elem=_elem(last, text))


def _elem(text: str, word: str) -> int | Auto:
    name = _ALSO_CALLED.get(text, text)
    if name == "auto":
        return "auto"
    if name in ELEM_OF_DTYPE:
        return ELEM_OF_DTYPE[name]
    known = [*ELEM_OF_DTYPE, *_ALSO_CALLED, "auto"]
    raise errors.UsageError(
        f"{text!r} in {word!r} is not an element type",
        next_steps=[*did_you_mean(text, known), f"the types: auto, {', '.join(ELEM_OF_DTYPE)}"],
    )


def _shape(text: str, word: str) -> Shape | Auto:
    if text == "auto":
        return "auto"
    return parse_symbolic_shapes([f"{word.split(':')[0]}:{text}"], "--inputs").popitem()[1]
