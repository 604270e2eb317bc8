"""All node tests that onnx ships, each run by ``biopsy run`` in a fork of one warm process."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Array, Iteration, RunnerResult


@dataclass(frozen=True, kw_only=True)
class NodeTest:
    """A model of onnx's own tests with its inputs and the outputs that the standard's authors expect."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    rtol: float
    atol: float
    complete: bool
    """Whether every input and output is a plain tensor that a file can hold."""


@cache
def node_tests() -> tuple[NodeTest, ...]:
    """Every node test with a model, in onnx's order."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        return tuple(_node_test(case) for case in collect_testcases(None) if case.model is not None)


def _node_test(case: Any) -> NodeTest:
    graph = case.model.graph
    fed, given = case.data_sets[0]
    inputs = _tensors([value.name for value in graph.input], fed)
    expected = _tensors([value.name for value in graph.output if value.name], given)
    return NodeTest(
        name=case.name,
        model=case.model,
        inputs={name: value for name, value in inputs.items() if value is not None},
        expected={name: value for name, value in expected.items() if value is not None},
        rtol=case.rtol,
        atol=case.atol,
        complete=all(value is not None for value in (*inputs.values(), *expected.values())),
    )


def _tensors(names: Sequence[str], values: Sequence[Any]) -> dict[str, Array | None]:
    return {name: _tensor(value) for name, value in zip(names, values, strict=False)}


def _tensor(value: Any) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype == object else array


def save(test: NodeTest, folder: Path) -> None:
    """Write ``model.onnx``, ``inputs.safetensors`` and ``golden.safetensors`` (strings: as .json) for the command."""
    (folder / "model.onnx").write_bytes(test.model.SerializeToString())
    write_feeds(folder / "inputs.json", [test.inputs])
    write_results(folder / "golden.json", [RunnerResult("expected", (Iteration(test.expected),))])


@dataclass(frozen=True)
class Ran:
    """How a command ended: its status (negative: a signal), what it printed, and its report."""

    status: int
    printed: str
    seconds: float
    report: Mapping[str, Any] = field(default_factory=dict)


def warm_up(*engines: str) -> None:
    """Load the engines, so that every command after it is a fork without start-up."""
    from biopsy.cli import zygote
    from biopsy.cli.run.options import own_run

    words = [word for engine in engines for word in ("--engine", engine)]
    args = own_run(["biopsy", "run", "model.onnx", *words])
    assert args is not None
    zygote.warm_up(args, zygote.load(args))


def run_forked(folder: Path, words: Sequence[str], limit: int = 120) -> Ran:
    """``biopsy run model.onnx`` with these words, in a fork whose current folder is this one; seconds are limited."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(folder, words, limit)
    _, ended = os.waitpid(child, 0)
    printed = (folder / "printed").read_text(errors="replace")
    found = json.loads(report.read_text()) if report.exists() else {}
    return Ran(os.waitstatus_to_exitcode(ended), printed, time.monotonic() - began, found)


def _become(folder: Path, words: Sequence[str], limit: int) -> None:
    status = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit)
        os.chdir(folder)
        output = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.environ.pop("BIOPSY_VERDICT", None)
        import sys

        from biopsy.cli.app import main

        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        status = main(["run", "model.onnx", *words, "--report", "report.json"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def each_in(folder: Path, tests: Sequence[NodeTest]) -> Iterator[tuple[NodeTest, Path]]:
    """Every test, written to a folder of its own below this one."""
    for test in tests:
        place = folder / test.name
        place.mkdir(parents=True, exist_ok=True)
        save(test, place)
        yield test, place
