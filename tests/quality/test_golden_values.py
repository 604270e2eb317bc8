"""What golden values of every tensor cost: memory for a few tensors at a time, however large all of them are."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from benchmarks.golden_json import FILES, taken
from benchmarks.own_run import PROGRAM
from biopsy.tensors.files import write_feeds, write_results
from support.models import info, model, save, weight
from support.predicates import names

LAYERS = 128
MEGABYTE = 1e6


def greatest_process(folder: Path, elements: int) -> float:
    """MB that the largest process takes of a reduction whose wrong layer is the last but one."""
    folder.mkdir()
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(LAYERS)]
    ends = [info("t0", shape=[2, elements // 2])], [info(f"t{LAYERS}", shape=[2, elements // 2])]
    made = model(nodes, *ends, [weight(f"w{i}", 0.5) for i in range(LAYERS)])
    feed = {"t0": np.linspace(-1, 1, elements, dtype=np.float32).reshape(2, -1)}
    results = biopsy.run(made, "onnxrt:threads=1", feed, outputs="all")
    write_feeds(folder / "inputs.json", [{**feed, **results[0].iterations[0].outputs}])
    write_results(folder / "golden.json", results)
    made.graph.initializer[LAYERS - 2].CopyFrom(numpy_helper.from_array(np.float32([0.75]), f"w{LAYERS - 2}"))
    save(made, folder / "m.onnx")
    check = ["--check", "biopsy", "run", "{}", "--onnxrt", *FILES]
    found = taken([PROGRAM, "debug", "reduce", "m.onnx", "-o", "r.onnx", *check], folder, [0])
    assert names(onnx.load(folder / "r.onnx")) == [f"n{LAYERS - 2}"]
    return found.peak


@pytest.mark.slow
def test_no_process_of_a_reduction_holds_the_values_of_every_tensor(tmp_path: Path) -> None:
    """Of 134 MB, those of one part at a time, 33 MB; and a dozen copies of the one tensor of 1 MB that is wrong."""
    elements = 1 << 18
    every_tensor = 4 * elements * LAYERS / MEGABYTE
    grown = greatest_process(tmp_path / "large", elements) - greatest_process(tmp_path / "small", 4)
    assert 0 < grown < every_tensor / 2
