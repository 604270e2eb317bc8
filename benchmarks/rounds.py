"""What reductions take where several checks run at once, in rounds of a simulated clock: nothing is timed.

    python -m benchmarks.rounds [--quick]

Rounds are what the checks would take, in units of one check, if they all took equally long and nothing else took time:
those of a whole reduction, from the first check of the original to the last of the file that was written.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx

import biopsy
from benchmarks import models
from benchmarks.attempts import NotMeasured, attempt, times_faster
from benchmarks.simulated_clock import SimulatedClock

JOBS = (1, 2, 4, 16, 64)
PATTERNS: dict[str, Callable[[list[str]], list[str]]] = {
    **{pattern: models.PATTERNS[pattern] for pattern in ("middle", "two far apart")},
    "ten scattered": lambda nodes: nodes[len(nodes) // 20 :: len(nodes) // 10],
}
NODES, QUICK = 10_000, 1_000


@cache
def built(nodes: int) -> onnx.ModelProto:
    """The transformer-like model, made once."""
    return models.transformer(nodes)


def rounds(nodes: int, pattern: str, jobs: int, folder: Path) -> tuple[int, int]:
    """How many rounds a reduction takes, and how many checks; it must end at the nodes that are needed."""
    clock, original = SimulatedClock(), built(nodes)
    wanted = {**models.PATTERNS, **PATTERNS}[pattern](models.names(original))

    def fails(model: onnx.ModelProto) -> bool:
        return set(wanted) <= set(models.names(model))

    found = biopsy.reduce(original, fails, folder / "r.onnx", takes="model", jobs=jobs, executor=clock)
    assert models.names(onnx.load(folder / "r.onnx")) == wanted
    return round(clock.now), found.checks


def table(nodes: int = NODES) -> str:
    """The rounds by checks at once, as a page's section."""
    lines = ["| nodes | failure needs | checks at once | checks | rounds | times faster |", "|--:|---|--:|--:|--:|--:|"]
    for pattern in PATTERNS:
        alone: int | None = None
        for jobs in JOBS:
            with tempfile.TemporaryDirectory() as folder:
                made = attempt(lambda: rounds(nodes, pattern, jobs, Path(folder)), 300.0)  # noqa: B023 -- called at once
            if isinstance(made, NotMeasured):
                cells = ["", str(made), ""]
            else:
                alone = made[0] if jobs == 1 else alone
                cells = [str(made[1]), str(made[0]), times_faster(alone, made[0])]
            lines.append(f"| {nodes:,} | {pattern} | {jobs} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 nodes")
    print(table(QUICK if parser.parse_args().quick else NODES))
