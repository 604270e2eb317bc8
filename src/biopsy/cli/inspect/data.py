"""``biopsy inspect data``: shows what a file of inputs or outputs holds."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.comparison.describe import statistics_text
from biopsy.comparison.metrics import histogram, statistics
from biopsy.tensors.files import read_container
from biopsy.tensors.results import Array, release
from biopsy.tensors.types import is_text, widened

EPILOG = """\
examples:
  biopsy inspect data inputs.json                     statistics of the first iteration
  biopsy inspect data golden.json --all --histogram   of all of them, with histograms
  biopsy inspect data golden.npz --name 'conv1*' -s   the values of some tensors"""

_ALL = sys.maxsize
BAR = 40
"""Characters of the longest bar of a histogram."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "path", type=types.READ, metavar="FILE", help="a file of inputs or outputs, or a folder of iterations"
    )
    parser.add_argument("-a", "--all", action="store_true", help="show all iterations, not only the first")
    parser.add_argument("-s", "--show-values", action="store_true", help="show the values too")
    parser.add_argument("--histogram", action="store_true", help="show how the values are distributed")
    parser.add_argument("--name", nargs="+", metavar="NAME", help="show only these tensors; '*' matches anything")
    parser.add_argument(
        "-n",
        "--num-items",
        type=types.count_or_all,
        default=3,
        metavar="N",
        help="how many values to show at the start and end of each dimension; -1 shows all (default: 3)",
    )
    parser.add_argument(
        "--line-width",
        type=types.count_or_all,
        default=75,
        metavar="N",
        help="characters per line of values; -1 breaks lines only at the end of a dimension (default: 75)",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the file."""
    container = read_container(args.path)
    runners = [runner for runner in container.runners if runner.iterations]
    if not runners:
        raise errors.DataError(f"{args.path} holds no iteration")
    names = {name for runner in runners for iteration in runner.iterations for name in iteration.outputs}
    if args.name and not any(_matches(name, args.name) for name in names):
        shown = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
        raise errors.UsageError(f"{args.path} has no tensor {' or '.join(args.name)}", next_steps=[f"it has: {shown}"])
    of_runs = container.kind != "feeds"
    if of_runs:
        console.say(f"==== Run Results ({len(runners)} runners) ==== {args.path}")
    for runner in runners:
        # Scripts for Polygraphy look for these headings.
        size = f"({len(runner.iterations)} iterations)"
        console.say(*(["", f"---- {runner.runner} {size} ----"] if of_runs else [f"==== Data {size} ==== {args.path}"]))
        for number, iteration in enumerate(runner.iterations if args.all else runner.iterations[:1]):
            took = "" if iteration.runtime is None else f" ({iteration.runtime * 1000:.3g} ms)"
            console.say("", f"-- Iteration: {number}{took}")
            for name in iteration.outputs:
                if not args.name or _matches(name, args.name):
                    array = iteration.outputs[name]
                    bars = _histogram_lines(array) if args.histogram else ()
                    console.say(_head(name, array), *bars)
                    if args.show_values:
                        most, width = args.num_items, args.line_width
                        cut: dict[str, Any] = {"threshold": 0, "edgeitems": most} if most >= 0 else {"threshold": _ALL}
                        text = np.array2string(widened(array), max_line_width=_ALL if width < 0 else width, **cut)
                        console.say(*(f"      {line}" for line in text.splitlines()))
                    release(array)
        if len(runner.iterations) > 1 and not args.all:
            console.note("", f"{len(runner.iterations) - 1} more: --all shows every iteration")
    return 0


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _head(name: str, array: Array) -> str:
    """The first line of a tensor. It begins as in Polygraphy, for scripts that look for it."""
    dtype = "string" if is_text(array) else array.dtype.name
    return f"  {name} [dtype={dtype}, shape={array.shape}] | Stats: {statistics_text(statistics(array))}"


def _histogram_lines(array: Array) -> Iterator[str]:
    bins = histogram(array)
    if not bins:
        return
    most = max(count for _, _, count in bins)
    ranges = [
        f"[{low:.4g}, {high:.4g}{']' if place == len(bins) - 1 else ')'}" for place, (low, high, _) in enumerate(bins)
    ]
    width, digits = max(map(len, ranges)), len(str(most))
    for text, (_, _, members) in zip(ranges, bins, strict=True):
        # Every bin that is not empty has a bar.
        bar = "#" * max(round(BAR * members / most), 1 if members else 0)
        yield f"      {text:<{width}}  {members:>{digits}}  {bar}".rstrip()
