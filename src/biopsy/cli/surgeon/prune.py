"""``biopsy surgeon prune``: makes weights 2:4 sparse, regardless of accuracy."""

from __future__ import annotations

import argparse

from biopsy.cli.console import Console
from biopsy.cli.model_files import ChangeOptions
from biopsy.model import external, stripping
from biopsy.model.load import parse
from biopsy.model.weights_file import Anew
from biopsy.text import count

EPILOG = """\
Of every four weights in a row along the dimension that a Conv, MatMul or Gemm sums over, the two smallest become zero.
The results of the model are wrong afterwards: prune a model to see how an engine builds and runs sparse weights.

examples:
  biopsy surgeon prune model.onnx -o sparse.onnx
  biopsy surgeon prune big.onnx -o sparse.onnx --save-external-data"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon prune``."""
    ChangeOptions.add(parser)


derived_files = ChangeOptions.reading(ChangeOptions.derived)


@ChangeOptions.reading
def execute(options: ChangeOptions, console: Console) -> int:
    """Prune the weights, write the model, and show which weights stay as they were, and why."""
    data = options.read()
    model = parse(data, options.model)
    anew: list[Anew] = []
    unpruned = []
    for factor in stripping.factors(model):
        if options.ignore_external_data and external.is_external(factor.weight):
            why: str | None = "its values are in another file (--ignore-external-data)"
        elif stripping.is_stripped(factor.weight):
            why = "it has no values (surgeon weight-strip)"
        else:
            why = factor.unfit
        if why is None:
            anew.append((factor.weight, stripping.pruned_later(factor, options.folder)))
        else:
            unpruned.append(f"  {factor.weight.name!r} stays as it was: {why}")
    options.save(model, data, console, anew)
    console.say(f"{count(len(anew), 'weight')} pruned to 2:4 sparsity, written to {options.output}")
    for line in unpruned:
        console.note(line)
    return 0
