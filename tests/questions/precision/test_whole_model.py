"""A whole model in fp16: what engines can run, what is counted, which values are lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from biopsy.questions.precision.mixed_models import in_fp16
from support.models import info, model, weight
from support.node_tests import node_tests

Node = helper.make_node
LOWEST = -3.4e38


def failure(data: bytes, feed: Mapping[str, Any]) -> str:
    """Why ONNX Runtime does not run a model, without its optimizations; "" if it does."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, dict(feed))
    except Exception as error:
        return str(error)
    return ""


def lost(*nodes: onnx.NodeProto, weights: tuple[onnx.TensorProto, ...] = ()) -> list[str]:
    made = model(list(nodes), [info("x")], [info("y")], list(weights))
    return [loss.name for loss in in_fp16(made, Path())[2]]


def test_a_scatter_with_a_reduction_stays_as_it_is() -> None:
    scatter = Node("ScatterND", ["x", "i", "u"], ["s"], reduction="add")
    at = onnx.numpy_helper.from_array(np.zeros((1, 1), np.int64), "i")
    made = model([scatter, Node("Exp", ["s"], ["y"])], [info("x")], [info("y")], [at, weight("u", 1, 2, shape=[1, 2])])
    data, lowered, _ = in_fp16(made, Path())
    assert lowered == 1
    assert not failure(data, {"x": np.ones((2, 2), np.float32)})


@pytest.mark.slow
def test_what_runs_in_float32_runs_in_fp16() -> None:
    asked = 0
    for test in node_tests():
        if all(used.version < 6 for used in test.model.opset_import if not used.domain):
            continue  # Cast knows no fp16 there
        if any(array.dtype == np.float16 for array in test.inputs.values()):
            continue  # in fp16 already, and ONNX Runtime loses track of Casts there and back that a body reads
        data, lowered, _ = in_fp16(test.model, Path())
        if lowered and not failure(test.model.SerializeToString(), test.inputs):
            asked += 1
            assert not failure(data, test.inputs), test.name
    assert asked > 500


def test_constants_that_fp16_cannot_hold_are_named_wherever_they_come_from() -> None:
    stored = helper.make_tensor("", TensorProto.FLOAT, [1], [LOWEST])
    add = Node("Add", ["x", "c"], ["y"])
    assert lost(Node("Constant", [], ["c"], value=stored), add) == ["c"]
    assert lost(Node("Constant", [], ["c"], value_float=LOWEST), add) == ["c"]
    assert lost(Node("Constant", [], ["c"], value_floats=[1.0, LOWEST]), add) == ["c"]
    assert lost(Node("Constant", [], ["k"], value=stored), Node("Neg", ["k"], ["c"]), add) == ["k"]
    shape = onnx.numpy_helper.from_array(np.array([2, 2], np.int64), "s")
    assert lost(Node("ConstantOfShape", ["s"], ["c"], value=stored), add, weights=(shape,)) == ["c"]
    assert lost(Node("Constant", [], ["c"], value_float=2.0), add) == []


def test_a_constant_in_a_body_is_named_too() -> None:
    body = helper.make_graph(
        [Node("Constant", [], ["c"], value_float=LOWEST), Node("Add", ["x", "c"], ["b"])], "b", [], [info("b")]
    )
    choice = onnx.numpy_helper.from_array(np.array(True), "choice")
    assert lost(Node("If", ["choice"], ["y"], then_branch=body, else_branch=body), weights=(choice,)) == ["c"]
