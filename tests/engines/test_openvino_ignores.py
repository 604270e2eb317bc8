"""Inputs that OpenVINO ignores are told, if the installed version really ignores them; and only those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.tensors.results import Array
from support.models import info


def lstm(peepholes: Array | None) -> ModelInput:
    random = np.random.default_rng(0)
    held = {name: random.normal(size=size).astype(np.float32) for name, size in (("w", (1, 8, 3)), ("r", (1, 8, 2)))}
    if peepholes is not None:
        held["p"] = peepholes
    inputs = ["x", "w", "r", *(["", "", "", "", "p"] if peepholes is not None else [])]
    node = helper.make_node("LSTM", inputs, ["", "y"], name="cell", hidden_size=2)
    weights = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph([node], "g", [info("x", [1, 1, 3])], [info("y", [1, 1, 2])], weights)
    return given(graph)


def given(graph: onnx.GraphProto, opset: int = 20) -> ModelInput:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return ModelInput(made.SerializeToString(), Path())


def dft(axis: int, opset: int = 20) -> ModelInput:
    weights = [numpy_helper.from_array(np.array(axis), "axis")] if opset >= 20 else []
    attributes = {} if opset >= 20 else {"axis": axis}
    node = helper.make_node("DFT", ["x", "", "axis"] if weights else ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [info("x", [1, 3, 4, 1])], [info("y", [1, 3, 4, 2])], weights)
    return given(graph, opset)


def told(model: ModelInput) -> list[str]:
    return [line for line in create("openvino").build(model).remarks if "ignores" in line]


def result(model: ModelInput, shape: tuple[int, ...]) -> Array:
    feed = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    return create("openvino").build(model).run(feed)["y"]


@pytest.mark.parametrize(
    ("one", "other", "shape", "line"),
    [
        (
            lstm(np.zeros((1, 6), np.float32)),
            lstm(np.full((1, 6), 3, np.float32)),
            (1, 1, 3),
            "OpenVINO ignores the peepholes of LSTM 'cell' (its input 'p'): other engines do not",
        ),
        (
            dft(1),
            dft(2),
            (1, 3, 4, 1),
            "OpenVINO ignores the axis of DFT #0 (its input 'axis'): other engines do not",
        ),
    ],
    ids=["LSTM", "DFT"],
)
def test_what_is_ignored_is_told(one: ModelInput, other: ModelInput, shape: tuple[int, ...], line: str) -> None:
    same = np.array_equal(result(one, shape), result(other, shape))
    assert told(one) == ([line] if same else [])


def test_what_is_not_there_or_is_read_is_not_told() -> None:
    assert told(lstm(None)) == []
    assert told(dft(1, opset=17)) == []
