"""``biopsy surgeon extract``: cut a subgraph out of a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypeVar

from biopsy import errors
from biopsy.cli.arguments import file_kinds, groups

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.extract import Wanted
    from biopsy.model.tensor_type import Shape

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
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "-o", "--output", type=file_kinds.WRITTEN, required=True, metavar="FILE", help="write the part to this file"
    )
    parser.add_argument(
        "--inputs",
        nargs="*",
        metavar="NAME:SHAPE:TYPE",
        help="inputs of the part; SHAPE and TYPE may be auto (default: the model's own)",
    )
    parser.add_argument(
        "--outputs", nargs="+", metavar="NAME:TYPE", help="outputs of the part (default: the model's own)"
    )
    groups.add_weights_folder(parser)
    groups.add_weights_file(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights beside the output."""
    return groups.derived_weights(args)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Extract, write, and tell what was kept."""
    import onnx  # noqa: F401 -- loaded before the model is looked at

    from biopsy.checks import verdict
    from biopsy.filesystem import write
    from biopsy.model import value_info, weights_file
    from biopsy.model.extract import extract
    from biopsy.model.index import index_file

    verdict.report_looking()
    index = index_file(args.model, args.external_data_dir)
    write.require_writable(args.output)
    inputs = None if args.inputs is None else [parse_input(text, index.ids) for text in args.inputs]
    outputs = None if args.outputs is None else [parse_output(text, index.ids) for text in args.outputs]
    part = extract(index, inputs, outputs)
    name = groups.weights_file(args, args.output)
    shown = [
        ", ".join(f"{info.name} {value_info.tensor_type(info.SerializeToString()) or ''}".strip() for info in infos)
        for infos in (part.graph.input, part.graph.output)
    ]
    kept = len(part.graph.node)
    weights_file.save_with_weights(part, args.output, index.folder, name)
    console.say(f"{kept} of {len(index.nodes)} nodes are in {args.output}")
    console.note(f"  inputs   {shown[0] or 'none'}")
    console.note(f"  outputs  {shown[1]}")
    return 0


def parse_input(text: str, known: Container[str]) -> Wanted:
    """An input from ``NAME:SHAPE:TYPE``, ``NAME:SHAPE`` or ``NAME``, where NAME itself may hold colons.

    Raises UsageError if it is none of them.
    """
    from biopsy.model.extract import Wanted

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
    from biopsy.model.extract import Wanted

    if text in known or ":" not in text:
        return Wanted(text)
    name, _, last = text.rpartition(":")
    if name.endswith(":auto") and name.removesuffix(":auto") in known:  # NAME:SHAPE:TYPE, as for inputs
        name = name.removesuffix(":auto")
    return Wanted(name, elem=_auto_or(last, _elem, text))


def _auto_or(text: str, read: Callable[[str, str], T], whole: str) -> T | Literal["auto"]:
    return "auto" if text == "auto" else read(text, whole)


def _elem(text: str, whole: str) -> int:
    from biopsy.model.tensor_type import ELEM_OF_DTYPE

    name = _ALSO_CALLED.get(text, text)
    if name in ELEM_OF_DTYPE:
        return ELEM_OF_DTYPE[name]
    close = get_close_matches(text, [*ELEM_OF_DTYPE, *_ALSO_CALLED], n=3)
    raise errors.UsageError(
        f"{text!r} in {whole!r} is not an element type",
        next_steps=[f"the nearest are: {', '.join(close)}" if close else "types are float32, int64, auto and so on"],
    )


def _shape(text: str, whole: str) -> Shape:
    from biopsy.cli.arguments.named_values import parse_symbolic_shapes

    return parse_symbolic_shapes([f"{whole.split(':')[0]}:{text}"], "--inputs").popitem()[1]
