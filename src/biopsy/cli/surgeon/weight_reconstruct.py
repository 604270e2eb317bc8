"""``biopsy surgeon weight-reconstruct``: random values for the weights of a stripped model."""

from __future__ import annotations

import argparse

from biopsy.cli import model_files
from biopsy.cli.console import Console
from biopsy.model import stripping
from biopsy.text import count

EPILOG = """\
Weights that 'surgeon weight-strip' left out, of biopsy or of Polygraphy, get random values of a normal distribution,
2:4 sparse where they were. They are the same each time. All other weights stay as they are.

examples:
  biopsy surgeon weight-reconstruct stripped.onnx -o runnable.onnx
  biopsy surgeon weight-reconstruct big.onnx -o runnable.onnx --save-external-data"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon weight-reconstruct``."""
    parser.epilog = EPILOG
    model_files.add(parser, "surgeon weight-reconstruct")


derived_files = model_files.derived


def execute(args: argparse.Namespace, console: Console) -> int:
    """Make up values, write, and tell for how many weights."""
    opened = model_files.opened(args)
    model = opened.parsed()
    found = stripping.refillings(model)
    stripping.unmark(model, [one.weight for one in found])
    model_files.save(args, model, opened, console, [(one.weight, one.values) for one in found])
    console.say(f"random values for {count(len(found), 'weight')}, written to {args.output}")
    sparse = sum(one.factor is not None for one in found)
    if sparse:
        console.note(f"  {count(sparse, 'of them is', 'of them are')} 2:4 sparse")
    if not found:
        console.note("  no weight is marked as stripped")
    return 0
