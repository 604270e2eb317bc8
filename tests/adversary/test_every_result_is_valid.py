"""Random models with bodies, sparse initializers and custom operators: each result is valid, and as small as it can be.

The failing node, at any depth, is drawn too. What a smaller result would be is found by leaving out each node, the
plain way.
"""

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from biopsy.model import walk
from biopsy.model.infer import infer_types
from support.bodied import bodied
from support.control_flow import body, scanning
from support.models import INT64, info, model
from support.oracle import candidate


def odd(seed: int) -> tuple[onnx.ModelProto, tuple[str, str]]:
    """A valid model, and the name and operator of its failing node; half of the types are not declared."""
    draw = random.Random(seed)
    made = bodied(seed)
    made.opset_import.append(helper.make_opsetid("my", 1))
    nodes = list(walk.nodes(made))
    unary = [node for node in nodes if node.op_type in {"Relu", "Neg", "Abs"}]
    for node in draw.sample(unary, min(len(unary), draw.randint(1, 3))):
        node.op_type, node.domain = "Odd", "my"
    if draw.random() < 0.7:
        (vector,) = (entry for entry in made.graph.input if entry.name == "v")
        made.graph.input.remove(vector)
        values = numpy_helper.from_array(np.array([2], np.float32), "v")
        places = helper.make_tensor("", INT64, [1], [1])
        made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    for graph in walk.graphs(made):
        if graph is not made.graph and draw.random() < 0.5:
            for entry in (*graph.input, *graph.output):
                entry.ClearField("type")
        declared = [entry for entry in graph.value_info if draw.random() < 0.5]
        del graph.value_info[:]
        graph.value_info.extend(declared)
    onnx.checker.check_model(made)
    failing = draw.choice([node for node in nodes if node.op_type != "Identity"])
    return made, (failing.name, failing.op_type)


def smaller(model: onnx.ModelProto, wanted: tuple[str, str]) -> list[str]:
    """The nodes of a model without which it is valid and has the wanted node."""
    found = []
    for number, node in enumerate(model.graph.node):
        without = candidate(model, set(range(len(model.graph.node))) - {number})
        if fails(without, wanted) and is_valid(without):
            found.append(node.name)
    return found


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def fails(model: onnx.ModelProto, wanted: tuple[str, str]) -> bool:
    return any((node.name, node.op_type) == wanted for node in walk.nodes(model))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in {7, 14} else pytest.mark.slow) for seed in range(24)]
)
def test_a_result_is_valid_and_no_node_of_it_can_be_left_out(tmp_path: Path, seed: int) -> None:
    made, wanted = odd(seed)
    biopsy.reduce(made, lambda model: fails(model, wanted), tmp_path / "r.onnx", takes="model", values="free")
    result = onnx.load(tmp_path / "r.onnx")
    onnx.checker.check_model(result)
    assert fails(result, wanted)
    assert smaller(result, wanted) == []


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("wanted", ["Add", "Mul", "Relu"])
def test_a_node_in_the_body_of_a_scan_is_all_that_stays(tmp_path: Path, typed: bool, wanted: str) -> None:
    """Also if the body does not declare the types that it reads and gives out, as ONNX allows."""
    made = scanning()
    if not typed:
        inner = body(made, "body")
        for entry in (*inner.input, *inner.output):
            entry.ClearField("type")
    for number, node in enumerate(walk.nodes(made)):
        node.name = node.name or f"n{number}"
    (failing,) = [(node.name, node.op_type) for node in walk.nodes(made) if node.op_type == wanted]
    biopsy.reduce(made, lambda model: fails(model, failing), tmp_path / "r.onnx", takes="model", values="free")
    result = onnx.load(tmp_path / "r.onnx")
    onnx.checker.check_model(result)
    assert [node.op_type for node in walk.nodes(result)] == [wanted]


@pytest.mark.parametrize("seed", [4, 12])
def test_a_node_whose_result_leaves_a_body_unread_is_taken_out_of_it(tmp_path: Path, seed: int) -> None:
    made, wanted = odd(seed)
    biopsy.reduce(made, lambda model: fails(model, wanted), tmp_path / "r.onnx", takes="model", values="free")
    assert [(node.name, node.op_type) for node in walk.nodes(onnx.load(tmp_path / "r.onnx"))] == [wanted]


def test_a_sparse_initializer_does_not_hide_the_types_behind_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "s"], ["a"], name="add"),
        helper.make_node("Neg", ["a"], ["b"], name="neg"),
        helper.make_node("Exp", ["b"], ["y"], name="exp"),
    ]
    made = model([*nodes], [info("x", (2, 3))], [info("y", (2, 3))])
    values = numpy_helper.from_array(np.array([2], np.float32), "s")
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("", INT64, [1], [1]), [3])
    )
    kinds = infer_types(made)
    assert kinds["a"] == kinds["b"] == kinds["y"]
    wanted = ("neg", "Neg")
    biopsy.reduce(made, lambda one: fails(one, wanted), tmp_path / "r.onnx", takes="model")
    result = onnx.load(tmp_path / "r.onnx")
    onnx.checker.check_model(result)
    assert [node.name for node in result.graph.node] == ["neg"]
