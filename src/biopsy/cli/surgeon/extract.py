"""``biopsy surgeon extract``: cut a subgraph out of a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Literal, TypeVar

from biopsy import errors
from biopsy.cli import model_files
from biopsy.cli.arguments import groups
from biopsy.cli.arguments.comparing import parse_shapes, parse_symbolic_shapes
from biopsy.cli.console import Console
from biopsy.model import parts
from biopsy.model.extract import Inference, Wanted, extract, mark_outputs
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import ELEM_OF_DTYPE, Shape, TensorType
from biopsy.text import did_you_mean

T = TypeVar("T")

EXAMPLES = """\
examples:
  biopsy surgeon extract model.onnx -o part.onnx --inputs x:[1,3,8,8]:float32 --outputs z:auto
  biopsy surgeon extract model.onnx -o part.onnx --inputs /layer4/add:auto:auto     (to the model's own outputs)
  biopsy surgeon extract model.onnx -o part.onnx --outputs /layer4/add              (from the model's own inputs)"""

_ALSO_CALLED = {"float": "float32", "double": "float64", "half": "float16", "boolean": "bool", "str": "string"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon extract``."""
    parser.epilog = EXAMPLES
    model_files.add(parser, "surgeon extract")
    parser.add_argument(
        "--inputs",
        nargs="*",
        metavar="NAME:SHAPE:TYPE",
        help="inputs of the part; SHAPE and TYPE may be auto (default: the model's own)",
    )
    parser.add_argument(
        "--outputs", nargs="+", metavar="NAME:TYPE", help="outputs of the part (default: the model's own)"
    )
    group = parser.add_argument_group("shape inference, for what is auto")
    ways = model_files.add_shape_inference(
        group, no_effect="what is auto is inferred anyway", without="take only what the model declares"
    )
    ways.add_argument(
        "--force-fallback-shape-inference",
        action="store_true",
        help="take types and shapes from a run of the model in onnxruntime; dynamic dimensions become fixed"
        " (without this, a run is made if a type cannot be inferred)",
    )
    group.add_argument(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:SHAPE",
        help="shapes of the model's inputs in that run, where it leaves them open",
    )
    model_files.add_no_onnxruntime(group)
    groups.FallbackInputs.add(
        group, load_inputs="the run that types and shapes are taken from has the first of these inputs"
    )


derived_files = model_files.derived


def execute(args: argparse.Namespace, console: Console) -> int:
    """Extract, write, and tell what was kept."""
    opened = model_files.opened(args)
    index = index_bytes(opened.data, opened.folder)
    inputs = None if args.inputs is None else [parse_input(text, index.ids) for text in args.inputs]
    outputs = None if args.outputs is None else [parse_output(text, index.ids) for text in args.outputs]
    part = extract(index, inputs, outputs, _inference(args, opened, console))
    shown = [
        ", ".join(f"{info.name} {parts.tensor_type(info.SerializeToString()) or ''}".strip() for info in infos)
        for infos in (part.graph.input, part.graph.output)
    ]
    kept = len(part.graph.node)
    model_files.save(
        args, part, opened, console, at_fault=["do --inputs and --outputs give the types that the tensors have?"]
    )
    console.say(f"{kept} of {len(index.nodes)} nodes are in {args.output}")
    console.note(f"  inputs   {shown[0] or 'none'}")
    console.note(f"  outputs  {shown[1]}")
    return 0


def _inference(args: argparse.Namespace, opened: model_files.Opened, console: Console) -> Inference:
    shapes = parse_shapes(args.model_input_shapes, "--model-input-shapes")

    model_files.warn_of_idle_options(args, console, runs=not args.no_shape_inference)
    by_running = model_files.FallbackRun(args, opened.folder, console, shapes)

    def run(names: Sequence[str]) -> Mapping[str, TensorType]:
        marked = mark_outputs(opened.data, names)
        if args.force_fallback_shape_inference:
            return by_running.types(marked)
        try:
            found = by_running.types(marked)
        except errors.BiopsyError as error:
            console.note(f"  {error.message}")
            return {}
        said = ", ".join(map(repr, names))
        console.warn(f"the type of {said} is taken from a run of the model: its dimensions are fixed")
        return found

    return Inference(infers=not args.no_shape_inference, run=run, runs_always=bool(args.force_fallback_shape_inference))


def parse_input(text: str, known: Container[str]) -> Wanted:
    """An input from ``NAME:SHAPE:TYPE``, ``NAME:SHAPE`` or ``NAME``, where NAME itself may hold colons.

    Raises UsageError if it is none of them.
    """
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
    return Wanted(name, _auto_or(shape, _shape, text), _auto_or(last, _elem, text))


def parse_output(text: str, known: Container[str]) -> Wanted:
    """An output from ``NAME:TYPE`` or ``NAME``. Raises UsageError if the type is unknown."""
    if text in known or ":" not in text:
        return Wanted(text)
    name, _, last = text.rpartition(":")
    if name.endswith(":auto") and name.removesuffix(":auto") in known:  # NAME:SHAPE:TYPE, as for inputs
        name = name.removesuffix(":auto")
    return Wanted(name, elem=_auto_or(last, _elem, text))


def _auto_or(text: str, read: Callable[[str, str], T], whole: str) -> T | Literal["auto"]:
    return "auto" if text == "auto" else read(text, whole)


def _elem(text: str, whole: str) -> int:
    name = _ALSO_CALLED.get(text, text)
    if name in ELEM_OF_DTYPE:
        return ELEM_OF_DTYPE[name]
    raise errors.UsageError(
        f"{text!r} in {whole!r} is not an element type",
        next_steps=[
            *did_you_mean(text, [*ELEM_OF_DTYPE, *_ALSO_CALLED, "auto"]),
            f"the types: auto, {', '.join(ELEM_OF_DTYPE)}",
        ],
    )


def _shape(text: str, whole: str) -> Shape:
    return parse_symbolic_shapes([f"{whole.split(':')[0]}:{text}"], "--inputs").popitem()[1]
