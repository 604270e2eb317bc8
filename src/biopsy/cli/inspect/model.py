"""``biopsy inspect model``: show the nodes, attributes and weights of a model, or what an engine made of one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.cli.arguments import file_kinds
from biopsy.cli.arguments.groups import add_weights_folder

if TYPE_CHECKING:
    from biopsy.cli.console import Console

EXAMPLES = """\
examples:
  biopsy inspect model model.onnx                                   a summary
  biopsy inspect model model.onnx --mode=basic                      every node, with lines such as: mul0 [Op: Mul]
  biopsy inspect model model.onnx --show layers attrs weights       everything
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
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model, or a file of --save-engine"
    )
    parser.add_argument(
        "--mode",
        choices=tuple(MODES),
        default="none",
        help="none: a summary; basic: also the nodes; attrs: also their attributes; full: also weights (default: none)",
    )
    parser.add_argument(
        "--show",
        nargs="+",
        choices=("layers", "attrs", "weights"),
        default=(),
        help="the same, chosen one by one; adds to --mode",
    )
    add_weights_folder(parser)


_OVERLAP = 64
"""More bytes than the key of a reference to another file has, with what stands before it."""


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the model."""
    from biopsy.checks import verdict
    from biopsy.cli.run.building import is_built

    if is_built(args.model):
        _show_built(args.model, bool({*MODES[args.mode], *args.show}), console)
        return 0
    from biopsy.model.describe import describe

    verdict.report_looking()
    console.say(*describe(args.model, {*MODES[args.mode], *args.show}, args.external_data_dir).split("\n"))
    _warn_of_places(args.model, args.external_data_dir or args.model.parent, console)
    return 0


def _warn_of_places(path: Path, folder: Path, console: Console) -> None:
    """Say that no engine will be given a model whose weights stand where none may be read."""
    from biopsy import errors
    from biopsy.model.external import may_refer, require_safe_locations
    from biopsy.model.load import READ_WHOLE, open_model
    from biopsy.text import printable

    data = open_model(path)
    pieces = range(0, len(data), READ_WHOLE)  # one after the other: a large model is not to be in memory for this
    if not any(may_refer(data[max(0, at - _OVERLAP) : at + READ_WHOLE]) for at in pieces):
        return
    try:
        require_safe_locations(bytes(data[:]), folder, path)
    except errors.ModelError as error:
        console.warn(printable(error.summary), "no engine is given this model")


def _show_built(path: Path, with_layers: bool, console: Console) -> None:
    """Show what an engine has saved: what goes in and comes out and, where it tells them, the layers."""
    from biopsy.checks import verdict
    from biopsy.engines import registry
    from biopsy.model.load import require_file

    require_file(path)
    name = next(name for name in registry.BUILT_IN if path.suffix in registry.find_class(name).capabilities.saves)
    engine = registry.create(name)
    version = engine.version()
    verdict.report_looking()
    session = engine.load(path)
    console.say(f"{path} · built by {name} {version}")
    for kind, names in (("input ", session.inputs), ("output", session.outputs)):
        for tensor in names:
            type_ = session.inputs.get(tensor)
            console.say(f"{kind}  {tensor}{f'  {type_}' if type_ is not None else ''}")
    if with_layers:
        for layer in session.layers():
            facts = (layer.kind, layer.implementation, layer.precision, layer.layout, ", ".join(layer.nodes))
            console.say(f"layer   {layer.name}  [{' · '.join(filter(None, facts))}]")
