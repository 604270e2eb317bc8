"""``biopsy inspect model``: show the nodes, attributes and weights of a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.cli.option_groups import add_weights_folder

if TYPE_CHECKING:
    from biopsy.cli.console import Console

EXAMPLES = """\
examples:
  biopsy inspect model model.onnx                                   a summary
  biopsy inspect model model.onnx --mode=basic                      every node, with lines such as: mul0 [Op: Mul]
  biopsy inspect model model.onnx --show layers attrs weights       everything
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
    parser.add_argument("model", type=Path, metavar="MODEL", help="the ONNX model")
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


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the model."""
    from biopsy.model.describe import describe

    console.say(describe(args.model, {*MODES[args.mode], *args.show}, args.external_data_dir))
    return 0
