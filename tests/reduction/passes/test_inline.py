import numpy as np
import onnx
from onnx import helper

from biopsy.reduction.passes.inlining import inline
from support.models import chain, info, model
from support.passes import assert_valid, run_pass, session


def calling() -> onnx.ModelProto:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    twice = helper.make_function("my", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opset)
    four = helper.make_function(
        "my", "Four", ["a"], ["c"],
        [helper.make_node("Twice", ["a"], ["b"], domain="my"), helper.make_node("Twice", ["b"], ["c"], domain="my")],
        opset,
    )  # fmt: skip
    nodes = [
        helper.make_node("Four", ["x"], ["f"], domain="my"),
        helper.make_node("Twice", ["f"], ["y"], domain="my"),
    ]
    return model(nodes, [info("x")], [info("y")], functions=[twice, four], domains=["my"])


def test_calls_are_replaced_by_their_nodes_and_compute_the_same() -> None:
    run = run_pass(inline, calling(), lambda candidate: bool(candidate.functions) or len(candidate.graph.node) == 3)
    assert [node.op_type for node in run.model.graph.node] == ["Add"] * 3
    assert not run.model.functions
    assert_valid(run.model)
    x = np.ones((2, 2), np.float32)
    assert session(run.model).run(None, {"x": x})[0].tolist() == (8 * x).tolist()


def test_nodes_of_a_function_that_the_failure_does_not_need_go() -> None:
    run = run_pass(inline, calling())
    assert [node.op_type for node in run.model.graph.node] == ["Add"]
    assert_valid(run.model)


def test_a_function_that_the_failure_needs_is_called_as_before() -> None:
    run = run_pass(inline, calling(), lambda candidate: any(f.name == "Twice" for f in candidate.functions))
    assert [function.name for function in run.model.functions] == ["Twice"]
    assert {node.op_type for node in run.model.graph.node} == {"Twice"}


def test_without_calls_nothing_is_tried() -> None:
    assert run_pass(inline, chain(2)).tried == []
