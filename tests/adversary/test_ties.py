"""A value at a tie, or at a whole number: an engine that takes the wrong side is wrong where nothing was rounded, and
right where a sum in another order comes to lie there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.console import Console
from biopsy.cli.run.noise import judge_noise
from biopsy.comparison.runs import compare_runs
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.registry import create
from biopsy.engines.yardstick import rounding_between
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult
from support.models import info, model

STEPS = {
    "Round": ([helper.make_node("Round", ["v"], ["y"])], 0.5, 1),
    "Floor": ([helper.make_node("Floor", ["v"], ["y"])], 0.0, 1),
    "Ceil": ([helper.make_node("Ceil", ["v"], ["y"])], 0.0, 1),
    "Cast": ([helper.make_node("Cast", ["v"], ["y"], to=onnx.TensorProto.INT32)], 0.0, 6),
    "Greater": ([helper.make_node("Greater", ["v", "five"], ["y"])], 0.0, 9),
    "QuantizeLinear": ([helper.make_node("QuantizeLinear", ["v", "one", "zero"], ["y"])], 0.5, 3),
    "DequantizeLinear": (
        [helper.make_node("QuantizeLinear", ["v", "one", "zero"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"])], 0.5, 1,
    ),
}  # fmt: skip
"""Nodes from ``v`` to ``y``, how far from a whole number they turn over, and the element type of ``y``."""

CONSTANTS = {
    "five": np.float32(5),
    "one": np.float32(1),
    "zero": np.int8(0),
    "two": np.float32(2),
    "first": np.int64(0),
}

EXACT = {
    "an input": ([helper.make_node("Identity", ["x"], ["v"])], lambda x: x),
    "a shape": ([helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Relu", ["t"], ["v"])],
                lambda x: np.maximum(x.T, 0)),
    "a sequence": ([helper.make_node("SequenceConstruct", ["x"], ["all"]),
                    helper.make_node("SequenceAt", ["all", "first"], ["v"])], lambda x: x),
    "a product": ([helper.make_node("Mul", ["x", "two"], ["v"])], lambda x: x * 2),
    "a sum of products": ([helper.make_node("MatMul", ["x", "w"], ["v"])], lambda x: x @ np.eye(8, dtype=np.float32)),
    "a branch": ([helper.make_node("If", ["so"], ["v"], then_branch=helper.make_graph(
        [helper.make_node("Add", ["x", "two"], ["inner"])], "then", [], [info("inner", shape=[8, 8])]),
        else_branch=helper.make_graph(
        [helper.make_node("Identity", ["x"], ["other"])], "else", [], [info("other", shape=[8, 8])]))],
        lambda x: x + 2),
}  # fmt: skip
"""Nodes from ``x`` to ``v`` that round nothing, for small numbers of a few digits, and what they compute."""


def model_of(nodes: Sequence[onnx.NodeProto], elem: int, read: str, weights: dict[str, Array]) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (CONSTANTS | weights).items()]
    used = {name for node in nodes for name in node.input} | {"two"}
    return model(list(nodes), [info(read, shape=[8, 8])], [info("y", [8, 8], elem)],
                 [weight for weight in held if weight.name in used], opset=21)  # fmt: skip


def verdicts(made: onnx.ModelProto, feed: Feed, actual: Array, expected: Array) -> tuple[str, bool]:
    """Whether rounding explains that two engines differ, and whether the first is right by its noise."""

    def run(engine: Engine, roundings: int = 0) -> RunnerResult:
        session = engine.build(ModelInput(made.SerializeToString(), Path()))
        return RunnerResult(engine.label, (Iteration(session.run(feed)),))

    pair = [RunnerResult(name, (Iteration({"y": y}),)) for name, y in (("a", actual), ("b", expected))]
    of_pair = rounding_between((pair[0], pair[1]), compare_runs(pair[0], pair[1]), run)
    (report,) = judge_noise(pair[:1], run, {}, Console())
    return of_pair.verdict, report.passed


def stepped(step: str, values: Array) -> Array:
    nodes, _, elem = STEPS[step]
    session = create("reference").build(ModelInput(model_of(nodes, elem, "v", {}).SerializeToString(), Path()))
    return session.run({"v": values})["y"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", EXACT)
def test_a_tie_that_nothing_has_rounded_is_no_matter_of_rounding(step: str, before: str) -> None:
    nodes, offset, elem = STEPS[step]
    first, compute = EXACT[before]
    x = (np.arange(64).reshape(8, 8) % 11 + offset).astype(np.float32)
    if before == "a product":
        x /= 2
    values = compute(x)
    right, above, below = (stepped(step, values + np.float32(nudge)) for nudge in (0, 1e-3, -1e-3))
    wrong = np.concatenate([above[:4], below[4:]])
    assert not np.array_equal(right, wrong)
    made = model_of([*first, *nodes], elem, "x", {"w": np.eye(8, dtype=np.float32), "so": np.array(True)})
    assert verdicts(made, {"x": x}, wrong, right) == ("bug", False)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(3))
def test_a_tie_near_which_a_sum_was_rounded_is(step: str, seed: int) -> None:
    nodes, offset, elem = STEPS[step]
    random = np.random.default_rng(seed)
    x, w = (random.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    bias = (5 + offset - exact).astype(np.float32)
    one, other = (sum(np.float32(x[:, [k]] * w[[k]]) for k in order) + bias for order in (range(8), range(7, -1, -1)))
    actual, expected = stepped(step, one), stepped(step, other)
    assert not np.array_equal(actual, expected)
    first = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Add", ["s", "b"], ["v"])]
    made = model_of([*first, *nodes], elem, "x", {"w": w, "b": bias})
    assert verdicts(made, {"x": x}, actual, expected) == ("rounding", True)
