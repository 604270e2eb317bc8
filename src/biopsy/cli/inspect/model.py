"""``biopsy inspect model``: shows the nodes, attributes and weights of a model, or the layers of a built engine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments.groups import BuiltModelTypeOption, ModelOption, WeightsFolderOption, is_built_model
from biopsy.cli.arguments.types import READ
from biopsy.cli.console import Console
from biopsy.engines import registry
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.model import load, sanitize
from biopsy.model.describe import braced, description, spelled
from biopsy.model.external import may_refer, require_safe_locations
from biopsy.model.load import READ_WHOLE, open_model, read_bytes, require_file
from biopsy.model.tensor_type import TensorType
from biopsy.slow_imports import np
from biopsy.text import printable

EPILOG = """\
examples:
  biopsy inspect model model.onnx                                   a summary
  biopsy inspect model model.onnx --show layers attrs weights       everything
  biopsy inspect model model.onnx --mode=basic                      also the nodes, as --show layers
  biopsy inspect model model.onnx --display-as trt --show layers    the network that TensorRT's parser makes of it
  biopsy inspect model model.onnx --list-unbounded-dds              tensors that set sizes without a bound
  biopsy inspect model model.onnx --show layers --combine-tensor-info outputs.json
  biopsy inspect model model.blob --show layers                     what OpenVINO has built
  biopsy debug reduce model.onnx -o reduced.onnx --fail-regex "Op: Mul" \\
      --check biopsy inspect model polygraphy_debug.onnx --mode=basic"""

MODES = {
    "none": (),
    "basic": ("layers",),
    "attrs": ("layers", "attrs"),
    "full": ("layers", "attrs", "weights"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``inspect model``."""
    ModelOption.add(parser, model=", or a file of --save-engine")
    parser.add_argument(
        "--show",
        nargs="+",
        choices=("layers", "attrs", "weights"),
        default=(),
        help="what else to show. layers: the nodes; attrs: also their attributes and bodies; weights: the values of "
        "weights",
    )
    parser.add_argument(
        "--mode",
        choices=tuple(MODES),
        default="none",
        help="an older spelling of --show. none: a summary; basic: layers; attrs: layers attrs; full: layers attrs "
        "weights",
    )
    parser.add_argument(
        "--display-as",
        "--convert-to",
        choices=("onnx", "trt"),
        default="onnx",
        help="onnx: the model as it is; trt: the network that TensorRT's parser makes of it (RTX needs no GPU; "
        "default: onnx)",
    )
    BuiltModelTypeOption.add(parser)
    parser.add_argument(
        "--list-unbounded-dds",
        action="store_true",
        help="list tensors whose values set a size without a bound; fold constants first (surgeon sanitize)",
    )
    parser.add_argument(
        "--combine-tensor-info",
        type=READ,
        metavar="FILE",
        help="saved outputs: show the range and mean of each tensor, in their first iteration, after its type",
    )
    WeightsFolderOption.add(parser)


_OVERLAP = 64
"""Bytes by which pieces of a model overlap, so that a reference to another file is whole in one of them."""


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the model."""
    shown = {*MODES[args.mode], *args.show}
    with_layers, folder = "layers" in shown, args.external_data_dir
    unbounded = {"--list-unbounded-dds": args.list_unbounded_dds}
    if is_built_model(args.model, args.model_type):
        needing_onnx = {**unbounded, "--display-as trt": args.display_as == "trt"}
        _require_absent(needing_onnx, f"needs an ONNX model, and {args.model} is none")
        _show_built(args.model, _facts(args.combine_tensor_info), with_layers, console)
        return 0
    if args.display_as == "trt":
        excluded = {**unbounded, "--combine-tensor-info": args.combine_tensor_info}
        _require_absent(excluded, "cannot be combined with --display-as trt")
        _show_network(args.model, folder or args.model.parent, with_layers, console)
        return 0
    facts = _facts(args.combine_tensor_info)
    verdict.report_looking()
    console.say(*description(args.model, shown, folder, facts))
    if args.list_unbounded_dds:
        model = load.parse(load.read_bytes(args.model), args.model)
        console.say(f"[I] Found tensors with unbounded DDS: {sanitize.unbounded_shapes(model)}")
    _warn_of_places(args.model, folder or args.model.parent, console)
    return 0


def _require_absent(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError for the first option that has a value."""
    for name, value in options.items():
        if value:
            raise errors.UsageError(f"{name} {why}")


def _facts(path: Path | None) -> dict[str, str]:
    """The range and mean of the tensors in a file of outputs, in its first iteration."""
    if path is None:
        return {}

    from biopsy.tensors.files import read_results

    facts = {}
    for name, value in read_results(path)[0].iterations[0].outputs.items():
        if value.size and value.dtype.kind not in "OUSV":
            wide = value.astype(np.float64)
            facts[name] = f"| Stats: min={wide.min():.6g}, max={wide.max():.6g}, mean={wide.mean():.6g}"
    return facts


def _show_network(path: Path, folder: Path, with_layers: bool, console: Console) -> None:
    """Show what TensorRT's parser makes of the model."""
    from biopsy.engines.trt import TensorRt

    engine = create("trt")
    assert isinstance(engine, TensorRt)
    engine.version()  # imports its package
    verdict.report_looking()
    console.say(*engine.network_text(ModelInput(read_bytes(path), folder, path), with_layers=with_layers))


def _warn_of_places(path: Path, folder: Path, console: Console) -> None:
    """Warn that no engine is given a model whose weights are in a file that may not be read."""
    data = open_model(path)
    pieces = range(0, len(data), READ_WHOLE)  # so that a large model is not in memory at once
    if not any(may_refer(data[max(0, at - _OVERLAP) : at + READ_WHOLE]) for at in pieces):
        return
    try:
        require_safe_locations(bytes(data[:]), folder, path)
    except errors.ModelError as error:
        console.warn(printable(error.summary), "no engine is given this model")


def _show_built(path: Path, facts: Mapping[str, str], with_layers: bool, console: Console) -> None:
    """Show the inputs and outputs of a built engine and, if wanted, its layers."""
    require_file(path)
    builders = [name for name in registry.BUILT_IN if path.suffix in registry.find_class(name).capabilities.saves]
    if not builders:
        raise errors.UsageError(
            f"the ending of {path} does not say which engine has built it",
            next_steps=["name it .engine (TensorRT), .blob or .xml (OpenVINO), or .ort (ONNX Runtime)"],
        )
    engine = create(builders[0])
    version = engine.version()
    verdict.report_looking()
    session = engine.load(path)
    title = _TITLES.get(builders[0], builders[0])
    console.say(f"{path} · built by {builders[0]} {version}", f"[I] ==== {title} ====")
    types = {
        name: spelled(kind) if isinstance(kind, TensorType) else str(kind or "")
        for name, kind in session.inputs.items()
    }
    for title, names in (("Input(s)", list(session.inputs)), ("Output(s)", session.outputs)):
        tensors = [" ".join(filter(None, (name, types.get(name, ""), facts.get(name, "")))) for name in names]
        console.say(f"    ---- {len(names)} Engine {title} ----", *(f"    {line}" for line in braced(tensors)), "")
    if with_layers:
        layers = session.layers()
        console.say(f"    ---- {len(layers)} Layer(s) ----")
        for number, layer in enumerate(layers):
            traits = filter(None, (layer.implementation, layer.precision, layer.layout, ", ".join(layer.nodes)))
            console.say(f"    Layer {number:<4} | {layer.name} [Op: {layer.kind}]  [{' · '.join(traits)}]")


_TITLES = {"trt": "TensorRT Engine", "openvino": "OpenVINO Model", "onnxrt": "ONNX Runtime Model"}
