import onnx
from onnx import helper

from biopsy.reduction.passes.removal import optional_inputs
from support.models import chain, info, model, weight
from support.passes import assert_valid, run_pass


def with_options() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["c"]),
        helper.make_node("Gemm", ["c", "x", "bias"], ["y"]),
    ]
    weights = [weight("low", 0.0, shape=()), weight("high", 1.0, shape=()), weight("bias", 1.0, 2.0)]
    return model(nodes, [info("x")], [info("y")], weights)


def test_all_optional_inputs_go_at_once() -> None:
    run = run_pass(optional_inputs, with_options())
    assert [list(node.input) for node in run.model.graph.node] == [["x"], ["c", "x"]]
    assert len(run.tried) == 1
    assert_valid(run.model)


def test_an_optional_input_before_one_that_matters_becomes_empty() -> None:
    run = run_pass(optional_inputs, with_options(), lambda candidate: "high" in candidate.graph.node[0].input)
    assert [list(node.input) for node in run.model.graph.node] == [["x", "", "high"], ["c", "x"]]
    assert_valid(run.model)


def test_required_inputs_and_unknown_operators_are_left_alone() -> None:
    assert run_pass(optional_inputs, chain(2)).tried == []
    odd = helper.make_node("Odd", ["x", "y"], ["z"], domain="my")
    assert run_pass(optional_inputs, model([odd], [info("x"), info("y")], [info("z")], domains=["my"])).tried == []
