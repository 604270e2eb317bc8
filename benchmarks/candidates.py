"""How long it takes to index a model and to make a candidate, beside graphsurgeon doing the same.

    python -m benchmarks.candidates [--peer PYTHON] [--quick]

The candidates are random subsets of the nodes of the transformer-like model: the worst case for the border. ``PYTHON``
is an interpreter with onnx-graphsurgeon, as Polygraphy uses it: copy the graph, choose nodes, clean up, export.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from benchmarks import models
from benchmarks.attempts import NotMeasured, attempt, times_faster

SIZES = (1_000, 10_000, 50_000, 100_000)
CANDIDATE_BUDGET = {1_000: 1.0, 10_000: 20.0, 50_000: 90.0, 100_000: 180.0}  # milliseconds
LIMIT = 600.0  # seconds after which a size is given up
_SEED = 3
_PEER_SIZES = (1_000, 10_000)  # at 50,000 nodes a candidate of graphsurgeon takes minutes


@dataclass(frozen=True)
class Times:
    """Medians in milliseconds for a model of ``nodes`` nodes."""

    nodes: int
    index: float
    candidate: float


def subsets(count: int, how_many: int) -> list[list[int]]:
    """Random subsets of random sizes, the same at every call."""
    chance = random.Random(_SEED)  # noqa: S311 -- the same numbers each time are wanted
    return [sorted(chance.sample(range(count), chance.randint(1, count))) for _ in range(how_many)]


def milliseconds(work: Sequence[Callable[[], object]], repetitions: int = 1) -> float:
    """The median over several pieces of work, of each its best time: what else the machine does is not measured."""
    return 1000 * statistics.median(min(_seconds(piece) for _ in range(repetitions)) for piece in work)


def _seconds(piece: Callable[[], object]) -> float:
    started = time.perf_counter()
    piece()
    return time.perf_counter() - started


def ours(path: Path, count: int, how_many: int) -> Times:
    """Measure the wire index."""
    from biopsy.model.index import index_file
    from biopsy.model.slice import Subset, candidate_parts

    index = index_file(path)

    def candidate(kept: tuple[int, ...]) -> object:
        return candidate_parts(Subset(index, kept))

    candidate((0,))  # what is made once per model: who computes a tensor, who reads it
    made = milliseconds([lambda kept=tuple(kept): candidate(kept) for kept in subsets(count, how_many)], 5)  # type: ignore[misc]
    return Times(count, milliseconds([lambda: index_file(path)], 7), made)


def graphsurgeon(path: Path, count: int, how_many: int) -> Times:
    """Measure import, and copy, choice of nodes, cleanup and export, as Polygraphy 0.53.6 makes its candidates."""
    import numpy as np
    import onnx
    import onnx_graphsurgeon as gs

    def load() -> gs.Graph:
        return gs.import_onnx(onnx.load(path))

    graph = load()

    def candidate(kept: Sequence[int]) -> object:
        copied = graph.copy()
        nodes = [copied.nodes[number] for number in kept]
        written = {tensor.name for node in nodes for tensor in node.outputs}
        outside = {tensor.name: tensor for node in nodes for tensor in node.inputs if tensor.name not in written}
        copied.inputs = [tensor for tensor in outside.values() if isinstance(tensor, gs.Variable)]
        copied.outputs = [nodes[-1].outputs[0]]
        for tensor in copied.inputs:
            tensor.inputs.clear()
        for tensor in (*copied.inputs, *copied.outputs):
            tensor.dtype = tensor.dtype or np.float32
        copied.cleanup()
        return gs.export_onnx(copied).SerializeToString()

    made = milliseconds([lambda kept=kept: candidate(kept) for kept in subsets(count, how_many)])  # type: ignore[misc]
    return Times(count, milliseconds([load]), made)


Both: TypeAlias = tuple[int, Times | NotMeasured, Times | NotMeasured | None]
"""A size, and what was measured of each; None where the peer is not asked."""


def measure(sizes: Sequence[int], peer: str | None) -> list[Both]:
    """Both for each size."""
    found: list[Both] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in sizes:
            path = Path(folder) / f"{count}.onnx"
            path.write_bytes(models.transformer(count).SerializeToString())
            beside = attempt(partial(_in_environment, peer, path, count)) if peer and count in _PEER_SIZES else None
            found.append((count, attempt(partial(ours, path, count, 41), LIMIT), beside))
    return found


def _in_environment(python: str, path: Path, count: int) -> Times:
    command = [python, "-m", "benchmarks.candidates", "--graphsurgeon", str(path), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LIMIT)
    return Times(**json.loads(done.stdout))


def table(found: Sequence[Both]) -> str:
    """The times as Markdown."""
    lines = [
        "| nodes | index, ms | graphsurgeon import, ms | candidate, ms | budget, ms | graphsurgeon, ms "
        "| times faster |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for count, own, peer in found:
        index, candidate = _cells(own)
        peer_index, peer_candidate = _cells(peer)
        measured = isinstance(own, Times) and isinstance(peer, Times)
        ratio = times_faster(peer.candidate, own.candidate) if measured else ""
        budget = _shown(CANDIDATE_BUDGET[count])
        lines.append(f"| {count:,} | {index} | {peer_index} | {candidate} | {budget} | {peer_candidate} | {ratio} |")
    return "\n".join(lines)


def _cells(one: Times | NotMeasured | None) -> tuple[str, str]:
    """What it took to index the model, and to make a candidate."""
    if isinstance(one, Times):
        return _shown(one.index), _shown(one.candidate)
    return ("" if one is None else str(one)), ""


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true", help="1,000 and 10,000 nodes, without the peer at 10,000")
    parser.add_argument("--graphsurgeon", nargs=2, metavar=("MODEL", "NODES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.graphsurgeon:
        path, count = Path(args.graphsurgeon[0]), int(args.graphsurgeon[1])
        sys.stdout.write(json.dumps(vars(graphsurgeon(path, count, 5 if count < 5_000 else 3))))
        return
    print(table(measure(SIZES[: 2 if args.quick else 3], args.peer)))


if __name__ == "__main__":
    main()
