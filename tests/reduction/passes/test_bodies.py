import onnx
import pytest
from onnx import helper

from biopsy.model import walk
from biopsy.reduction.passes.bodies import bodies
from support.control_flow import body, branching, looping, scanning
from support.models import INT64, chain, info
from support.passes import assert_valid, run_pass


def in_bodies(made: onnx.ModelProto) -> set[str]:
    return {node.op_type for graph in walk.graphs_within(made.graph.node) for node in graph.node}


def has(*operators: str):
    return lambda candidate: set(operators) <= in_bodies(candidate)


def test_only_the_node_that_matters_is_left_of_a_branch_and_gives_its_output() -> None:
    run = run_pass(bodies, branching(), has("Mul"))
    (node,) = body(run.model, "then_branch", 1).node
    assert (node.op_type, list(node.output)) == ("Mul", ["t"])
    assert [inner.op_type for inner in body(run.model, "else_branch", 1).node] == ["Identity"]
    assert_valid(run.model)


@pytest.mark.parametrize("operators", [("Neg",), ("Mul",), ("Exp",), ("Neg", "Exp"), ("Neg", "Mul", "Exp"), ()])
def test_any_remaining_part_of_a_branch_is_a_valid_model(operators: tuple[str, ...]) -> None:
    run = run_pass(bodies, branching(), has(*operators))
    assert in_bodies(run.model) - {"Identity"} == set(operators)
    assert_valid(run.model)


@pytest.mark.parametrize("operators", [("Add",), ("Mul",), ("Neg",), ("Exp",), ("Add", "Exp"), ()])
def test_any_remaining_part_of_a_loop_is_a_valid_model(operators: tuple[str, ...]) -> None:
    run = run_pass(bodies, looping(), has(*operators))
    assert in_bodies(run.model) - {"Identity"} == set(operators)
    assert_valid(run.model)


def test_two_nodes_that_must_be_connected_are_connected_by_a_bypass() -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        then = body(candidate, "then_branch", 1)
        made = {name for node in then.node if node.op_type == "Neg" for name in node.output}
        return any(node.op_type == "Exp" and made & set(node.input) for node in then.node)

    run = run_pass(bodies, branching(), fails)
    assert [node.op_type for node in body(run.model, "then_branch", 1).node] == ["Neg", "Exp"]
    assert_valid(run.model)


@pytest.mark.parametrize("make", [looping, scanning])
def test_outputs_of_loops_that_nothing_reads_go_with_their_nodes(make) -> None:
    made = make()
    del made.graph.node[1:]
    del made.graph.output[1:]
    run = run_pass(bodies, made, lambda candidate: bool(in_bodies(candidate)))
    assert len(run.model.graph.node[0].output) == 1
    assert_valid(run.model)


def test_a_carried_value_that_only_serves_itself_is_removed() -> None:
    made = looping()
    node = made.graph.node[0]
    inner = body(made, "body")
    inner.node.append(helper.make_node("Add", ["k", "k"], ["k_on"]))
    inner.input.append(info("k", (), INT64))
    inner.output.insert(2, info("k_on", (), INT64))
    node.input.append("count")
    node.output.insert(1, "unread")
    assert_valid(made)
    run = run_pass(bodies, made, has("Add", "Mul", "Neg", "Exp"))
    assert list(run.model.graph.node[0].output) == ["last", "all"]
    assert len(body(run.model, "body").input) == 3
    assert_valid(run.model)


def test_a_loop_without_a_trip_count_keeps_its_condition() -> None:
    made = looping()
    made.graph.node[0].input[0] = ""
    inner = body(made, "body")
    inner.node[0].CopyFrom(helper.make_node("Less", ["n", "two"], ["go_on"]))
    inner.initializer.append(helper.make_tensor("two", INT64, [], [2]))
    assert "Less" in in_bodies(run_pass(bodies, made).model)


def test_without_bodies_nothing_is_tried() -> None:
    assert run_pass(bodies, chain(3)).tried == []
    assert run_pass(bodies, onnx.ModelProto()).tried == []


def test_a_carried_value_without_a_declared_shape_is_cut_with_that_of_the_first_trip() -> None:
    made = looping()
    inner = body(made, "body")
    for entry in (inner.input[2], *inner.output[1:]):
        entry.type.tensor_type.ClearField("shape")
    run = run_pass(bodies, made, has("Mul"))
    (added,) = (entry for entry in run.model.graph.input if entry.name == "w0")
    assert [dim.dim_value for dim in added.type.tensor_type.shape.dim] == [2, 2]
    assert_valid(run.model)
