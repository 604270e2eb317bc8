"""``biopsy inspect sparsity``: shows which weights have the 2:4 pattern of structured sparsity, and which could."""

from __future__ import annotations

import argparse

from biopsy.checks import verdict
from biopsy.cli.arguments.groups import ModelOption, WeightsFolderOption
from biopsy.cli.console import Console
from biopsy.model import external, index, load
from biopsy.model.stripping import conforming, factors

EPILOG = """\
examples:
  biopsy inspect sparsity model.onnx         weights of MatMul, Gemm and Conv: sparse already, or prunable?
  biopsy inspect sparsity model.onnx -v      also the weights that are not eligible, and why"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``inspect sparsity``."""
    ModelOption.add(parser)
    WeightsFolderOption.add(parser)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the sparsity of the weights."""
    import onnx  # noqa: F401 -- before report_looking, so that a failure of onnx is not taken for the model's

    verdict.report_looking()
    folder = args.external_data_dir or args.model.parent
    index.index_file(args.model, folder)  # refuses what is damaged, or refers to what may not be read
    weights = factors(load.parse(load.read_bytes(args.model), args.model))
    eligible = [factor for factor in weights if factor.unfit is None]
    console.say(f"[I] Found: {len(eligible)} weight tensor(s) eligible for pruning.")
    sparse = 0
    for factor in weights:
        weight = factor.weight
        axes = f"{'axis' if len(factor.axes) == 1 else 'axes'} {', '.join(map(str, factor.axes))}"
        where = f"{axes} of {list(weight.dims)}, read by {', '.join(factor.readers[:3])}"
        if factor.unfit is not None:
            console.detail(f"[V] Skipping tensor: {weight.name}  ({factor.unfit}; {where})")
            continue
        share = conforming(factor, external.values_later(weight, folder)())
        sparse += share == 1
        if share == 1:
            console.say(f"[I] Found sparse tensor: {weight.name}  ({where})")
        else:
            zeros = f"{100 * share:.3g}% of the groups of 4 have two zeros"
            console.say(f"[W] Found non-sparse tensor: {weight.name}  (prunable: {zeros}; {where})")
    prunable, unfit = len(eligible) - sparse, len(weights) - len(eligible)
    console.say(f"{sparse} sparse, {prunable} prunable, {unfit} not eligible" + (" (-v names them)" if unfit else ""))
    return 0
