"""Which nodes are random: those of bodies and functions too, and a Dropout only where it is in training mode."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.model.index import index_bytes
from biopsy.model.nodes import random_nodes
from support.models import info, model


def found(made: onnx.ModelProto) -> list[str]:
    return random_nodes(index_bytes(made.SerializeToString()))


def one(node: onnx.NodeProto, *weights: onnx.TensorProto, opset: int = 17) -> onnx.ModelProto:
    return model([node], [info("x")], [info("y")], weights, opset=opset)


def test_random_operators_are_named_and_others_are_not() -> None:
    made = model(
        [
            helper.make_node("Bernoulli", ["x"], ["b"], name="toss", seed=1.0),
            helper.make_node("RandomNormalLike", ["b"], ["r"]),
            helper.make_node("Bernoulli", ["x"], ["c"], domain="own"),
            helper.make_node("Add", ["r", "c"], ["y"]),
        ],
        [info("x")],
        [info("y")],
    )
    assert found(made) == ["Bernoulli 'toss'", "RandomNormalLike #1"]


def switch(value: bool) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value), "t")


@pytest.mark.parametrize(
    ("node", "weights", "opset", "random"),
    [
        (helper.make_node("Dropout", ["x"], ["y"]), [], 17, False),
        (helper.make_node("Dropout", ["x", "", "t"], ["y"]), [switch(True)], 17, True),
        (helper.make_node("Dropout", ["x", "", "t"], ["y"]), [switch(False)], 17, False),
        (helper.make_node("Dropout", ["x"], ["y"]), [], 10, False),
        (helper.make_node("Dropout", ["x"], ["y"]), [], 6, True),
        (helper.make_node("Dropout", ["x"], ["y"], is_test=1), [], 6, False),
    ],
)
def test_a_dropout_is_random_in_training_mode(
    node: onnx.NodeProto, weights: list[onnx.TensorProto], opset: int, random: bool
) -> None:
    assert found(one(node, *weights, opset=opset)) == (["Dropout #0 in training mode"] if random else [])


def test_a_mode_that_comes_from_outside_may_be_training() -> None:
    made = one(helper.make_node("Dropout", ["x", "", "t"], ["y"]))
    made.graph.input.append(info("t", [], onnx.TensorProto.BOOL))
    assert found(made) == ["Dropout #0 in training mode"]
    constant = helper.make_node("Constant", [], ["t"], value=switch(False))
    del made.graph.input[1:]
    made.graph.node.insert(0, constant)
    assert found(made) == []


def test_bodies_and_functions_are_looked_into() -> None:
    constant = helper.make_node("Constant", [], ["mode"], value=switch(True))
    drop = helper.make_node("Dropout", ["x", "", "mode"], ["d"])
    body = helper.make_graph([constant, drop], "body", [], [info("d")])
    calm = helper.make_graph([helper.make_node("Dropout", ["x"], ["e"])], "calm", [], [info("e")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function(
        "own", "Inner", ["x"], ["z"], [helper.make_node("RandomUniformLike", ["x"], ["z"])], opsets
    )
    outer = helper.make_function(
        "own", "Outer", ["x"], ["z"], [helper.make_node("Inner", ["x"], ["z"], domain="own")], opsets
    )
    made = model(
        [
            helper.make_node("If", ["c"], ["i"], name="choice", then_branch=body, else_branch=calm),
            helper.make_node("If", ["c"], ["j"], then_branch=calm, else_branch=calm),
            helper.make_node("Outer", ["i"], ["k"], domain="own"),
            helper.make_node("Add", ["j", "k"], ["y"]),
        ],
        [info("x"), info("c", [], onnx.TensorProto.BOOL)],
        [info("y")],
        functions=[outer, inner],
        domains=["own"],
    )
    assert found(made) == ["If 'choice' (Dropout in training mode inside)", "Outer #2 (RandomUniformLike inside)"]
