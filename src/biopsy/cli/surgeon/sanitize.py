"""``biopsy surgeon sanitize``: fix input shapes, fold constants, clean up, sort."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import file_kinds, groups

if TYPE_CHECKING:
    import onnx

    from biopsy.cli.console import Console
    from biopsy.model.tensor_type import TensorType

EXAMPLES = """\
examples:
  biopsy surgeon sanitize model.onnx -o fixed.onnx --override-input-shapes x:[1,3,224,224]
  biopsy surgeon sanitize model.onnx -o folded.onnx --override-input-shapes x:[1,3] --fold-constants
  biopsy surgeon sanitize model.onnx -o clean.onnx --cleanup --toposort"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon sanitize``."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "-o",
        "--output",
        type=file_kinds.written_over("model"),
        required=True,
        metavar="FILE",
        help="write the result to this file",
    )
    parser.add_argument(
        "--override-input-shapes",
        "--override-inputs",
        nargs="+",
        metavar="NAME:SHAPE",
        help="fix the shapes of inputs; a symbolic dimension gets its size everywhere",
    )
    parser.add_argument(
        "--fold-constants",
        action="store_true",
        help="compute what does not depend on the inputs, and remove what that leaves unused "
        '(pip install "biopsy[surgeon]")',
    )
    parser.add_argument("--cleanup", action="store_true", help="remove unused nodes, weights and functions")
    parser.add_argument("--toposort", action="store_true", help="sort the nodes so that each comes after its inputs")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--no-shape-inference", action="store_true", help="write no inferred types and shapes")
    shapes.add_argument(
        "--force-fallback-shape-inference",
        action="store_true",
        help="take types and shapes from a run of the model in onnxruntime; dynamic dimensions become fixed",
    )
    groups.add_weights_folder(parser)
    groups.add_weights_file(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights beside the output."""
    return groups.derived_weights(args)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Do what was asked in a fixed order, write, and tell what changed."""
    import onnx  # noqa: F401 -- loaded before the model is looked at

    from biopsy.checks import verdict
    from biopsy.filesystem import write
    from biopsy.model import external, index, load, sanitize, weights_file

    verdict.report_looking()
    data = load.read_bytes(args.model)
    external.require_safe_locations(data, args.external_data_dir or args.model.parent, args.model)
    index.require_sound(data, args.model)
    model = load.parse(data, args.model)
    write.require_writable(args.output)
    folder = args.external_data_dir or args.model.parent
    before = sanitize.count_operators(model)
    if args.toposort:
        sanitize.sort_nodes(model)
    if args.override_input_shapes:
        _freeze(model, args.override_input_shapes, console)
    _infer(model, folder, args)
    if args.fold_constants:
        sanitize.fold_constants(model, folder)
        _infer(model, folder, args)
    if args.cleanup:
        sanitize.clean_up(model)
    after = sanitize.count_operators(model)
    name = groups.weights_file(args, args.output)
    weights_file.save_with_weights(model, args.output, folder, name)
    for why in sanitize.endless(model):
        console.warn(f"what was written is no valid ONNX, and no engine can run it: {why}")
    console.say(f"{before.total()} -> {after.total()} nodes, written to {args.output}")
    console.note(f"  {', '.join(sanitize.changes(before, after)) or 'no node was added or removed'}")
    return 0


def _freeze(model: onnx.ModelProto, texts: list[str], console: Console) -> None:
    from biopsy.cli.arguments.named_values import parse_symbolic_shapes
    from biopsy.model import sanitize

    shapes = parse_symbolic_shapes(texts, "--override-input-shapes")
    for symbol in sanitize.freeze_inputs(model, shapes).conflicts:
        console.warn(f"the dimension {symbol!r} was given two sizes: it is fixed in the inputs named, and only there")


def _infer(model: onnx.ModelProto, folder: Path, args: argparse.Namespace) -> None:
    from biopsy.model import sanitize

    if args.force_fallback_shape_inference:
        sanitize.infer_by_running(model, lambda data: _types_by_running(data, folder))
    elif not args.no_shape_inference:
        sanitize.refresh_shapes(model)


def _types_by_running(data: bytes, folder: Path) -> dict[str, TensorType]:
    """Types of the inputs and outputs of a model in one run with random inputs, in a process of its own."""
    from biopsy.engines.base import ModelInput
    from biopsy.engines.worker import Worker
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.model.index import index_bytes
    from biopsy.model.tensor_type import ELEM_OF_DTYPE, STRING, TensorType
    from biopsy.tensors.files import write_feeds
    from biopsy.tensors.generate import generate_feeds

    index = index_bytes(data, folder)
    types = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    feeds = generate_feeds({name: kind for name, kind in types.items() if kind is not None})
    with temporary_folder("biopsy-") as scratch:
        given = scratch / "inputs.safetensors"
        write_feeds(given, feeds)
        try:
            with Worker("onnxrt:optimization=none", scratch) as worker:
                outputs = worker.run(ModelInput(data, folder.resolve()), given)[0]
        except errors.EngineFailure as error:
            raise errors.BiopsyError(
                f"the model cannot be run once to see its shapes: {error.message}",
                next_steps=["leave out --force-fallback-shape-inference", *error.next_steps],
            ) from error
    values = {**feeds[0], **outputs}
    return {
        name: TensorType(ELEM_OF_DTYPE.get(str(array.dtype), STRING), array.shape) for name, array in values.items()
    }
