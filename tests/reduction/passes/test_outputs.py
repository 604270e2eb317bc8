import onnx
from onnx import helper

from biopsy.reduction.passes.removal import outputs
from support.models import chain, info, model
from support.passes import assert_valid, run_pass


def everything_marked() -> onnx.ModelProto:
    made = chain(8)
    made.graph.output.extend(info(f"t{number}") for number in range(1, 8))
    return made


def test_one_output_is_left_when_none_matters() -> None:
    run = run_pass(outputs, everything_marked())
    assert [entry.name for entry in run.model.graph.output] == ["t8"]
    assert len(run.tried) == 1
    assert_valid(run.model)


def test_an_output_that_matters_is_found_by_halves() -> None:
    run = run_pass(outputs, everything_marked(), lambda candidate: "t3" in {o.name for o in candidate.graph.output})
    assert {entry.name for entry in run.model.graph.output} == {"t3", "t8"}
    assert len(run.tried) <= 8


def test_the_second_output_of_a_node_goes_and_the_first_stays() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=0)
    run = run_pass(outputs, model([node], [info("x")], [info("a", (1, 2)), info("b", (1, 2))]))
    assert len(run.model.graph.output) == 1
    assert_valid(run.model)


def test_the_only_outputs_of_nodes_are_not_tried_again() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"])]
    assert run_pass(outputs, model(nodes, [info("x")], [info("a"), info("b")])).tried == []
