"""``biopsy surgeon prune``: 2:4 sparse weights, whatever that does to accuracy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from biopsy.cli import model_files
from biopsy.cli.console import Console
from biopsy.model import external, stripping
from biopsy.model.stripping import Factor
from biopsy.text import count

EPILOG = """\
Of every four weights in a row along the dimension that a Conv, MatMul or Gemm sums over, the two smallest become zero.
The results of the model are wrong afterwards: prune a model to see how an engine builds and runs sparse weights.

examples:
  biopsy surgeon prune model.onnx -o sparse.onnx
  biopsy surgeon prune big.onnx -o sparse.onnx --save-external-data"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon prune``."""
    parser.epilog = EPILOG
    model_files.add(parser, "surgeon prune")


derived_files = model_files.derived


def execute(args: argparse.Namespace, console: Console) -> int:
    """Prune, write, and tell which weights stay as they were, and why."""
    opened = model_files.opened(args)
    model = opened.parsed()
    left = [(factor, _why_left(factor, opened)) for factor in stripping.factors(model)]
    fit = [factor for factor, why in left if why is None]
    anew = [(factor.weight, _values(factor, opened.folder)) for factor in fit]
    model_files.save(args, model, opened, console, anew)
    console.say(f"{count(len(fit), 'weight')} pruned to 2:4 sparsity, written to {args.output}")
    for factor, why in left:
        if why is not None:
            console.note(f"  {factor.weight.name!r} stays as it was: {why}")
    return 0


def _why_left(factor: Factor, opened: model_files.Opened) -> str | None:
    if opened.ignores_weights and external.is_external(factor.weight):
        return "its values stand in another file (--ignore-external-data)"
    if stripping.is_stripped(factor.weight):
        return "it has no values (surgeon weight-strip)"
    return factor.unfit


def _values(factor: Factor, folder: Path) -> Callable[[], bytes]:
    dense = external.values_later(factor.weight, folder)
    return lambda: stripping.pruned(factor, dense())
