"""Golden values of every tensor as JSON: whole reductions of classifiers, and one cold run.

    python -m benchmarks.golden_json [--peer FOLDER]

The models are those that the package onnx has, without trained weights, in each of which one node is made another:
densenet121 has 472 MB of inputs and 472 MB of golden values, squeezenet 45 MB of each. Memory is that of the largest
process; of the cold run, above the same command without the files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import biopsy
from benchmarks.attempts import NotMeasured, attempt, times_faster
from benchmarks.own_run import PROGRAM
from biopsy.tensors.files import write_feeds, write_results

HERE = Path(__file__).parent.absolute()
MODELS = Path(onnx.__file__).parent / "backend/test/data/light"
FILES = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
LIMIT = 900.0
"""Seconds after which a command is stopped."""


@dataclass(frozen=True)
class Taken:
    """What a command took: seconds, and MB of its largest process. ``stopped`` if it was not done within the limit."""

    seconds: float
    peak: float
    stopped: bool = False


@dataclass(frozen=True)
class Classifier:
    """A model of the package onnx: the operator of its middle node of the kind ``right`` is made ``wrong``.

    ``without``: so many of its last nodes are left out. Softmax is 0.001 for each class, whatever weights that are all
    equal make of an image.
    """

    name: str
    right: str
    wrong: str
    without: int = 0

    def model(self) -> onnx.ModelProto:
        """The right one."""
        model = onnx.load(MODELS / f"light_{self.name}.onnx")
        for _ in range(self.without):
            last = model.graph.node.pop()
            model.graph.output[0].name = last.input[0]
        return model


DENSENET = Classifier("densenet121", "Mul", "Div")
SQUEEZENET = Classifier("squeezenet", "Relu", "Sigmoid", without=1)


def failing(folder: Path, classifier: Classifier = DENSENET) -> str:
    """Write ``m.onnx`` and the values of the right model; the output of the wrong node."""
    model = classifier.model()
    weights = {tensor.name for tensor in model.graph.initializer}
    image = next(info for info in model.graph.input if info.name not in weights)
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    feed = {image.name: np.random.default_rng(1).random(shape, dtype=np.float32)}
    results = biopsy.run(model, "onnxrt:optimization=none", feed, outputs="all")
    write_feeds(folder / "inputs.json", [{**feed, **results[0].iterations[0].outputs}])
    write_results(folder / "golden.json", results)
    changed = [node for node in model.graph.node if node.op_type == classifier.right]
    culprit = changed[len(changed) // 2]
    culprit.op_type = classifier.wrong
    onnx.save(model, folder / "m.onnx")
    return culprit.output[0]


def taken(command: Sequence[str | Path], folder: Path, statuses: Sequence[int]) -> Taken:
    """What a command took that must end with one of these statuses, unless it is stopped."""
    started = [sys.executable, HERE / "largest_process.py", str(LIMIT), *map(str, command)]
    told = subprocess.run(started, cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    seconds, status, peak = json.loads(told)
    if status is not None and status not in statuses:
        raise RuntimeError(f"{command} ended with {status}")
    return Taken(seconds, peak, stopped=status is None)


def best(command: Sequence[str | Path], folder: Path, statuses: Sequence[int], times: int) -> Taken:
    """The best of some runs."""
    runs = [taken(command, folder, statuses) for _ in range(times)]
    return Taken(min(run.seconds for run in runs), min(run.peak for run in runs), any(run.stopped for run in runs))


Runs = dict[str, dict[str, Taken | NotMeasured]]
"""What each tool took, by what was asked of it and by its name."""


def reductions(folder: Path, classifier: Classifier, tools: Mapping[str, Path]) -> dict[str, Taken | NotMeasured]:
    """What it takes to reduce a classifier to its wrong node, by tool; results are ``TOOL.onnx``."""
    culprit = failing(folder, classifier)
    found: dict[str, Taken | NotMeasured] = {}
    for name, program in tools.items():
        common = ["debug", "reduce", "m.onnx", "-o", f"{name}.onnx", *(["--mode=bisect"] if name != "biopsy" else [])]
        check = ["--check", program, "run", "polygraphy_debug.onnx", "--onnxrt", *FILES]
        reduction = partial(best, [program, *common, *check], folder, [0], 3 if name == "biopsy" else 1)
        found[name] = attempt(reduction, 4 * LIMIT)
    assert [list(node.output) for node in onnx.load(folder / "biopsy.onnx").graph.node] == [[culprit]]
    return found


def cold_runs(folder: Path, tools: Mapping[str, Path]) -> dict[str, Taken | NotMeasured]:
    """What a check of the model of one node takes that was found, as a process of its own."""
    return {name: attempt(partial(_one_run, program, folder), 7 * LIMIT) for name, program in tools.items()}


def _one_run(program: Path, folder: Path) -> Taken:
    """A run with the files; memory is that above a run without."""
    run = [program, "run", "biopsy.onnx", "--onnxrt"]
    with_files, without = best([*run, *FILES], folder, [1], 3), best(run, folder, [0], 3)
    return Taken(with_files.seconds, with_files.peak - without.peak, with_files.stopped)


def measure(folder: Path, peer: Path | None) -> Runs:
    """Everything: the smaller model, then the larger one, then the run of one node with the files of that."""
    tools = {"biopsy": PROGRAM} | ({} if peer is None else {"Polygraphy": peer / "bin/polygraphy"})
    found = {f"debug reduce, {one.name}": reductions(folder, one, tools) for one in (SQUEEZENET, DENSENET)}
    return {**found, "run of one node": cold_runs(folder, tools)}


def table(peer: Path | None) -> str:
    """Everything as a page's section."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), peer)
    lines = ["| what | with | s | memory, MB | times faster |", "|---|---|--:|--:|--:|"]
    for what, runs in found.items():
        beside = runs.get("Polygraphy")
        for name, run in runs.items():
            if isinstance(run, NotMeasured):
                lines.append(f"| {what} | {name} | {run} |  |  |")
                continue
            known = isinstance(beside, Taken) and run is not beside
            ratio = times_faster(beside.seconds, run.seconds, at_least=beside.stopped) if known else ""
            more = "> " if run.stopped else ""
            lines.append(f"| {what} | {name} | {more}{run.seconds:.2f} | {run.peak:,.0f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, metavar="FOLDER")
    given = parser.parse_args().peer
    print(table(None if given is None else given.absolute()))
