"""Checks that are our own ``run``: one warm check against a cold one, and whole reductions beside Polygraphy's.

    python -m benchmarks.own_run [--peer FOLDER]

The failure is a node that computes something else than its golden values say, in transformer-like models: the values
of every tensor are those of the same model with one weight changed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import biopsy
from benchmarks import models
from benchmarks.attempts import NotMeasured, attempt, times_faster
from biopsy.checks.warm import command_check
from biopsy.model.slice import identity_bytes
from biopsy.tensors.files import write_feeds, write_results

SIZES = (105, 641, 1_746)
LIMIT = 600.0
"""Seconds after which a command is stopped."""
PROGRAM = Path(sys.executable).with_name("biopsy")


@dataclass(frozen=True)
class Failure:
    """A failing model in a folder, with its golden values in the form that both tools read."""

    folder: Path
    culprit: str

    @property
    def check(self) -> list[str]:
        """What follows the name of the tool in the check."""
        files = ["--load-inputs", "inputs.json", "--load-outputs", "golden.json"]
        return ["run", "polygraphy_debug.onnx", "--onnxrt", *files]


def failing(folder: Path, nodes: int) -> Failure:
    """Write ``m.onnx``, whose MatMul in the middle has another weight than the golden values say."""
    right = models.transformer(nodes)
    products = [node for node in right.graph.node if node.op_type == "MatMul"]
    weights = {tensor.name: tensor for tensor in right.graph.initializer}
    culprit = next(node for node in products[len(products) // 2 :] if node.input[1] in weights)
    session_input = right.graph.input[0]
    shape = [dim.dim_value for dim in session_input.type.tensor_type.shape.dim]
    feed = {session_input.name: np.random.default_rng(1).random(shape, dtype=np.float32)}
    results = biopsy.run(right, "onnxrt:optimization=none", feed, outputs="all")
    write_feeds(folder / "inputs.json", [{**feed, **results[0].iterations[0].outputs}])
    write_results(folder / "golden.json", results)
    tensor = weights[culprit.input[1]]
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.5, tensor.name))
    onnx.save(right, folder / "m.onnx")
    return Failure(folder, culprit.name)


def seconds(command: Sequence[str | Path], folder: Path) -> float:
    """Wall time of a command that must end well."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=LIMIT,
    )
    taken = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return taken


def whole_commands(failure: Failure, peer: Path | None, times: int = 3) -> dict[str, float]:
    """The median of whole reductions with each tool; the peer, which is slow, runs once."""
    common = ["debug", "reduce", "m.onnx", "-o", "r.onnx"]
    ours = [PROGRAM, *common, "--check", "biopsy", *failure.check]
    found = {"biopsy": statistics.median(seconds(ours, failure.folder) for _ in range(times))}
    assert models.names(onnx.load(failure.folder / "r.onnx")) == [failure.culprit]
    if peer is not None:
        program = peer / "bin/polygraphy"
        theirs = [program, *common, "--mode=bisect", "--check", program, *failure.check]
        found["Polygraphy --mode=bisect"] = seconds(theirs, failure.folder)
    return found


def one_check(times: int = 41) -> tuple[float, float]:
    """Median milliseconds of a warm and of a cold check of a model of one node, one after the other in turn."""
    with tempfile.TemporaryDirectory() as folder:
        candidate = Path(folder) / "c.onnx"
        candidate.write_bytes(identity_bytes())
        warm = command_check(["biopsy", "run", "{}", "--onnxrt"], "c.onnx")
        warm.run(candidate)
        taken: tuple[list[float], list[float]] = ([], [])
        for number in range(times):
            for check, into in zip((warm, warm.cold()), taken, strict=True):
                if into is taken[0] or number % 4 == 0:
                    started = time.perf_counter()
                    evidence = check.run(candidate)
                    into.append(1000 * (time.perf_counter() - started))
                    assert evidence.status == 0
        warm.close()
    return statistics.median(taken[0]), statistics.median(taken[1])


def sleeping(folder: Path) -> dict[int, float]:
    """Whole reductions of a model that fails where it has two nodes, with a check that sleeps 200 ms, by jobs."""
    model = models.transformer(1_000)
    onnx.save(model, folder / "s.onnx")
    wanted = models.PATTERNS["two far apart"](models.names(model))
    check = folder / "check.sh"
    check.write_text('#!/bin/sh\nsleep 0.2\ngrep -q "$2" "$1" && grep -q "$3" "$1" && exit 1\nexit 0\n')
    check.chmod(0o755)
    found, written = {}, set()
    for jobs in (1, 2):
        command = ["debug", "reduce", "s.onnx", "-o", "s_r.onnx", "--jobs", str(jobs), "--check", str(check), "{}"]
        found[jobs] = seconds([PROGRAM, *command, *wanted], folder)
        written.add((folder / "s_r.onnx").read_bytes())
    assert len(written) == 1
    return found


def table(peer: Path | None) -> str:
    """Everything as a page's section."""
    lines = ["| what | with | s | times faster |", "|---|---|--:|--:|"]
    measures: dict[str, Callable[[], dict[str, float]]] = {
        **{f"{nodes:,} nodes, golden JSON": partial(_whole, nodes, peer) for nodes in SIZES},
        "one check of one node": _one_check,
        "a check that sleeps 200 ms": _sleeping,
    }
    for what, measure in measures.items():
        made = attempt(measure)
        if isinstance(made, NotMeasured):
            lines.append(f"| {what} |  | {made} |  |")
            continue
        slowest = max(made.values())
        lines += [f"| {what} | {who} | {taken:.3f} | {times_faster(slowest, taken)} |" for who, taken in made.items()]
    return "\n".join(lines)


def _whole(nodes: int, peer: Path | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return whole_commands(failing(Path(folder), nodes), peer)


def _one_check() -> dict[str, float]:
    warm, cold = one_check()
    return {"warm": warm / 1000, "cold": cold / 1000}


def _sleeping() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return {f"--jobs {jobs}": taken for jobs, taken in sleeping(Path(folder)).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, metavar="FOLDER")
    print(table(parser.parse_args().peer))
