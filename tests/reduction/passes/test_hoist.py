import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.reduction.passes.inlining import hoist, unfolded_if, unfolded_loop, unfolded_scan
from support.control_flow import branching, looping, scanning
from support.models import BOOL, INT64, chain, info, model
from support.passes import assert_valid, run_pass, session
from support.reducer import Reducer
from support.reducer import reducer as reducer

X = np.array([[1, -2], [3, 0.5]], np.float32)


def operators(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def outputs(made: onnx.ModelProto, **feed: np.ndarray) -> list[np.ndarray]:
    ran = session(made)
    return ran.run(None, {entry.name: feed[entry.name] for entry in ran.get_inputs()})


@pytest.mark.parametrize(("attribute", "taken"), [("then_branch", True), ("else_branch", False)])
def test_a_branch_in_place_of_an_if_computes_what_the_if_did(attribute: str, taken: bool) -> None:
    made = branching()
    assert unfolded_if(attribute, made, made.graph, 1)
    assert_valid(made)
    before = outputs(branching(), x=X, c=np.array(taken))[0]
    assert np.array_equal(outputs(made, x=X, c=np.array(taken))[0], before)


def test_one_trip_in_place_of_a_loop_computes_what_one_trip_did() -> None:
    made, once = looping(), looping()
    once.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(1, np.int64), "count"))
    assert unfolded_loop(made, made.graph, 0)
    for graph in (made.graph, once.graph):
        graph.output[1].type.tensor_type.shape.dim[0].dim_value = 1
    assert_valid(made)
    for actual, expected in zip(outputs(made, x=X), outputs(once, x=X), strict=True):
        assert np.array_equal(actual, expected)


def test_one_step_in_place_of_a_scan_computes_what_the_first_step_did() -> None:
    made = scanning()
    assert unfolded_scan(made, made.graph, 0)
    made.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 1
    assert_valid(made)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    feed = {"start": np.ones(2, np.float32), "x": rows}
    all_steps = outputs(scanning(), **feed)
    last, stacked = outputs(made, **feed)
    assert last.tolist() == [1, 2]
    assert stacked.tolist() == all_steps[1][:1].tolist()


@pytest.mark.parametrize("make", [branching, looping, scanning])
def test_the_node_that_matters_inside_is_all_that_is_left(make) -> None:
    run = run_pass(hoist, make(), lambda candidate: "Mul" in operators(candidate) or "If" in operators(candidate))
    if make is branching:
        run = run_pass(hoist, make(), lambda candidate: "Mul" in operators(candidate))
    assert operators(run.model) == ["Mul"]
    assert_valid(run.model)


def test_a_loop_inside_a_branch_is_hoisted_too() -> None:
    then = looping().graph
    del then.input[:]
    del then.output[1:]
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["e"])], "else", [], [info("e")])
    node = helper.make_node("If", ["c"], ["z"], name="if", then_branch=then, else_branch=other)
    made = model([node], [info("x"), info("c", (), BOOL)], [info("z")])
    assert_valid(made)
    run = run_pass(hoist, made, lambda candidate: "Exp" not in operators(candidate) and has_mul(candidate))
    assert operators(run.model) == ["Mul"]
    assert_valid(run.model)


def has_mul(candidate: onnx.ModelProto) -> bool:
    return b"Mul" in candidate.SerializeToString()


def test_names_that_are_taken_outside_are_changed_inside() -> None:
    made = branching()
    made.graph.node.append(helper.make_node("Neg", ["x"], ["t1"], name="mul"))
    made.graph.output.append(info("t1"))
    assert unfolded_if("else_branch", made, made.graph, 1)
    assert_valid(made)
    made = branching()
    made.graph.node.append(helper.make_node("Neg", ["x"], ["t1"], name="mul"))
    made.graph.output.append(info("t1"))
    assert unfolded_if("then_branch", made, made.graph, 1)
    assert_valid(made)
    assert len({node.name for node in made.graph.node}) == len(made.graph.node)


def test_a_function_is_taken_apart_and_searched() -> None:
    opset = [helper.make_opsetid("", 17)]
    inner = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Mul", ["b", "a"], ["c"])]
    function = helper.make_function("my", "F", ["a"], ["c"], inner, opset)
    call = helper.make_node("F", ["x"], ["y"], domain="my")
    made = model([call], [info("x")], [info("y")], functions=[function], domains=["my"])
    run = run_pass(hoist, made, lambda candidate: operators(candidate)[-1] == "Mul")
    assert operators(run.model) == ["Mul"]
    assert_valid(run.model)


def test_a_loop_that_does_not_fit_its_body_is_left_alone() -> None:
    made = looping()
    made.graph.node[0].input.append("x")
    assert run_pass(hoist, made).tried == []
    assert run_pass(hoist, chain(2)).tried == []


def fails_with_mul(taken: bool | None, trips: int | None) -> onnx.ModelProto:
    """An If or a Loop with a Mul inside; ``taken`` or ``trips`` are a weight, unless they are None: then an input."""
    made = branching() if trips is None else looping()
    if trips is not None:
        made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(trips, np.int64), "count"))
        del made.graph.output[1]
    elif taken is not None:
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(taken), "c"))
        del made.graph.input[1]
    return made


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "a weight"])
@pytest.mark.parametrize(
    ("taken", "trips", "left"),
    [(True, None, "Mul"), (False, None, "If"), (None, 3, "Mul"), (None, 0, "Loop"), (None, None, "Mul")],
)
def test_a_body_that_never_runs_does_not_take_the_place_of_its_node(
    taken: bool | None, trips: int | None, left: str, is_given: bool, reducer: Reducer
) -> None:
    made = fails_with_mul(None if is_given else taken, trips)
    feed = {"x": X, **({"c": np.array(taken)} if is_given and taken is not None else {})}
    if trips is not None and is_given:
        feed["count"] = np.array(trips, np.int64)
        made.graph.initializer.pop()
        made.graph.input.append(info("count", (), INT64))
    reducer(made, has_mul, inputs=None if taken is trips is None else [feed], values="free")
    assert operators(reducer.result) == [left] and has_mul(reducer.result)
