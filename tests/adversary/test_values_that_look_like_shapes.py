"""Integers that look like shapes and depend on made-up values: frozen, they would be a claim about nobody's inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import reduce
from support.models import INT64, info, model
from support.predicates import has

SIZES_FROM_VALUES = {
    "NonZero": lambda: [helper.make_node("NonZero", ["x"], ["n"])],
    "Unique": lambda: [helper.make_node("Unique", ["x"], ["n"])],
    "Compress": lambda: [
        helper.make_node("Cast", ["x"], ["c"], to=9),
        helper.make_node("Reshape", ["c", "flat"], ["b"]),
        helper.make_node("Compress", ["x", "b"], ["n"]),
    ],
    "Slice": lambda: [
        helper.make_node("Cast", ["x"], ["c"], to=INT64),
        helper.make_node("Reshape", ["c", "flat"], ["ends"]),
        helper.make_node("Slice", ["ends", "zero", "one"], ["end"]),
        helper.make_node("Slice", ["ends", "zero", "end"], ["n"]),
    ],
    "Range": lambda: [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["limit"], to=INT64),
        helper.make_node("Range", ["start", "limit", "step"], ["n"]),
    ],
    "If": lambda: [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["c"], to=9),
        helper.make_node("If", ["c"], ["n"], then_branch=_constant([1, 2]), else_branch=_constant([1, 2, 3])),
    ],
}


def _constant(values: list[int]) -> onnx.GraphProto:
    node = helper.make_node("Constant", [], ["o"], value_ints=values)
    return helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("o", INT64, [None])])


def _model(name: str) -> onnx.ModelProto:
    nodes = [
        *SIZES_FROM_VALUES[name](),
        helper.make_node("Shape", ["n"], ["count"]),
        helper.make_node("ReduceProd", ["count"], ["s"], keepdims=1),
        helper.make_node("Expand", ["z", "s"], ["y"], name="expand"),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.array(value, np.int64), key)
        for key, value in {"flat": [-1], "zero": [0], "one": [1], "start": 0, "step": 1}.items()
    ]
    return model(nodes, [info("x", (2, 3)), info("z", (1,))], [info("y", [None])], weights, opset=17)


@pytest.mark.parametrize("name", SIZES_FROM_VALUES)
def test_the_shape_of_what_values_decide_is_fed_and_not_frozen_with_made_up_values(name: str, tmp_path: Path) -> None:
    reduce(_model(name), has("expand"), tmp_path / "reduced.onnx", takes="model")
    result = onnx.load(tmp_path / "reduced.onnx")
    assert [node.name for node in result.graph.node] == ["expand"]
    assert [entry.name for entry in result.graph.input] == ["z", "s"]
    assert not result.graph.initializer
