"""Golden values of every tensor as JSON, 472 MB of inputs and 472 MB of outputs: one cold run, and a whole reduction.

    python -m benchmarks.golden_json [--peer FOLDER]

The model is densenet121 as the package onnx has it, without trained weights, one of whose multiplications is made a
division. Memory is that of the largest process; of the cold run, above the same command without the files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import biopsy
from benchmarks.own_run import PROGRAM
from biopsy.tensors.files import write_feeds, write_results

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx"
FILES = ("--load-inputs", "inputs.json", "--load-outputs", "golden.json")
LIMIT = 900.0
"""Seconds after which a command is stopped."""


@dataclass(frozen=True)
class Taken:
    """What a command took: seconds, and MB of its largest process. ``stopped`` if it was not done within the limit."""

    seconds: float
    peak: float
    stopped: bool = False


def failing(folder: Path) -> str:
    """Write ``m.onnx`` and the values of the right model; the name of the wrong node."""
    model = onnx.load(MODEL)
    weights = {tensor.name for tensor in model.graph.initializer}
    image = next(info for info in model.graph.input if info.name not in weights)
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    feed = {image.name: np.random.default_rng(1).random(shape, dtype=np.float32)}
    results = biopsy.run(model, "onnxrt:optimization=none", feed, outputs="all")
    write_feeds(folder / "inputs.json", [{**feed, **results[0].iterations[0].outputs}])
    write_results(folder / "golden.json", results)
    products = [node for node in model.graph.node if node.op_type == "Mul"]
    culprit = products[len(products) // 2]
    culprit.op_type = "Div"
    onnx.save(model, folder / "m.onnx")
    return culprit.name


def taken(command: Sequence[str | Path], folder: Path, statuses: Sequence[int]) -> Taken:
    """What a command took that must end with one of these statuses, unless it is stopped."""
    started = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), cwd=folder, stdout=-3, stderr=-3, start_new_session=True)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        seconds = time.monotonic() - started
        if pid:
            break
        if seconds > LIMIT:
            os.killpg(process.pid, 9)
            _, _, usage = os.wait4(process.pid, 0)
            return Taken(seconds, usage.ru_maxrss / 1000, stopped=True)
        time.sleep(0.005)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in statuses:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return Taken(seconds, usage.ru_maxrss / 1000)


def best(command: Sequence[str | Path], folder: Path, statuses: Sequence[int], times: int) -> Taken:
    """The best of some runs."""
    runs = [taken(command, folder, statuses) for _ in range(times)]
    return Taken(min(run.seconds for run in runs), min(run.peak for run in runs), any(run.stopped for run in runs))


def measure(folder: Path, peer: Path | None) -> dict[str, dict[str, Taken]]:
    """What each tool took, by what was asked of it and by its name."""
    culprit = failing(folder)
    tools = {"biopsy": PROGRAM} | ({} if peer is None else {"Polygraphy": peer / "bin/polygraphy"})
    found: dict[str, dict[str, Taken]] = {"debug reduce": {}, "run of one node": {}}
    for name, program in tools.items():
        common = ["debug", "reduce", "m.onnx", "-o", f"{name}.onnx", *(["--mode=bisect"] if name != "biopsy" else [])]
        check = ["--check", program, "run", "polygraphy_debug.onnx", "--onnxrt", *FILES]
        found["debug reduce"][name] = best([program, *common, *check], folder, [0], 3 if name == "biopsy" else 1)
    assert [node.name for node in onnx.load(folder / "biopsy.onnx").graph.node] == [culprit]
    for name, program in tools.items():
        run = [program, "run", "biopsy.onnx", "--onnxrt"]
        with_files, without = best([*run, *FILES], folder, [1], 3), best(run, folder, [0], 3)
        found["run of one node"][name] = Taken(with_files.seconds, with_files.peak - without.peak, with_files.stopped)
    return found


def table(peer: Path | None) -> str:
    """Everything as a page's section."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), peer)
    lines = ["| what | with | s | memory, MB | slower |", "|---|---|--:|--:|--:|"]
    for what, runs in found.items():
        for name, run in runs.items():
            more = "> " if run.stopped else ""
            ratio = f"{more}{run.seconds / runs['biopsy'].seconds:.1f}×"  # noqa: RUF001
            lines.append(f"| {what} | {name} | {more}{run.seconds:.2f} | {run.peak:,.0f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, metavar="FOLDER")
    given = parser.parse_args().peer
    print(table(None if given is None else given.absolute()))
