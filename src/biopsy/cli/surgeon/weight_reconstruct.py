"""``biopsy surgeon weight-reconstruct``: gives the weights of a stripped model random values."""

from __future__ import annotations

import argparse

from biopsy.cli.console import Console
from biopsy.cli.model_files import ChangeOptions
from biopsy.model import stripping
from biopsy.model.load import parse
from biopsy.text import count

EPILOG = """\
Weights that 'surgeon weight-strip' left out, of biopsy or of Polygraphy, get random values of a normal distribution,
2:4 sparse where they were. They are the same each time. All other weights stay as they are.

examples:
  biopsy surgeon weight-reconstruct stripped.onnx -o runnable.onnx
  biopsy surgeon weight-reconstruct big.onnx -o runnable.onnx --save-external-data"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon weight-reconstruct``."""
    ChangeOptions.add(parser)


derived_files = ChangeOptions.reading(ChangeOptions.derived)


@ChangeOptions.reading
def execute(options: ChangeOptions, console: Console) -> int:
    """Fill the weights, write the model, and show how many there are."""
    data = options.read()
    model = parse(data, options.model)
    refillings = stripping.refillings(model)
    stripping.unmark(model, [each.weight for each in refillings])
    options.save(model, data, console, [(each.weight, each.values) for each in refillings])
    console.say(f"random values for {count(len(refillings), 'weight')}, written to {options.output}")
    sparse = sum(each.factor is not None for each in refillings)
    if sparse:
        console.note(f"  {count(sparse, 'of them is', 'of them are')} 2:4 sparse")
    if not refillings:
        console.note("  no weight is marked as stripped")
    return 0
