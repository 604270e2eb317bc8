"""What a reduction ends at, and what it leaves behind: with predicates, so that every answer is certain."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import errors, reduce
from support.models import BOOL, FLOAT, INT64, chain, info, model, save, seeds_example, weight
from support.predicates import connected, has, has_any, names


def branches() -> onnx.ModelProto:
    """before -> (left0 -> left1 | right0 -> right1) -> join -> after."""
    nodes = [
        helper.make_node("Relu", ["x"], ["b"], name="before"),
        helper.make_node("Neg", ["b"], ["l0"], name="left0"),
        helper.make_node("Abs", ["b"], ["r0"], name="right0"),
        helper.make_node("Exp", ["l0"], ["l1"], name="left1"),
        helper.make_node("Sqrt", ["r0"], ["r1"], name="right1"),
        helper.make_node("Add", ["l1", "r1"], ["j"], name="join"),
        helper.make_node("Relu", ["j"], ["y"], name="after"),
    ]
    return model(nodes, [info("x")], [info("y")])


@pytest.mark.parametrize("mode", ["bisect", "linear"])
@pytest.mark.parametrize("culprit", ["before", "left0", "left1", "right0", "right1", "join", "after"])
def test_one_culprit_before_in_at_and_after_a_branch_is_all_that_is_left(reducer, mode: str, culprit: str) -> None:
    reducer(branches(), has(culprit), mode=mode)
    assert names(reducer.result) == [culprit]
    onnx.checker.check_model(reducer.result, full_check=True)


@pytest.mark.parametrize("mode", ["bisect", "linear"])
def test_when_both_sides_of_a_branch_are_needed_both_are_left(reducer, mode: str) -> None:
    reducer(branches(), has("left1", "right1"), mode=mode)
    assert {"left1", "right1"} <= set(names(reducer.result))
    if mode == "linear":
        assert len(reducer.result.graph.node) == 2


def test_what_connects_two_needed_nodes_stays(reducer) -> None:
    reducer(branches(), connected("before", "join"), mode="linear")
    assert names(reducer.result) == ["before", "left0", "left1", "join"]


@pytest.mark.parametrize("length", [2, 5, 100, 1000])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 1.0])
def test_bisect_finds_one_culprit_in_two_logarithms_and_ten_checks(reducer, length: int, place: float) -> None:
    culprit = f"n{round(place * (length - 1))}"
    result = reducer(chain(length), has(culprit), mode="bisect")
    assert names(reducer.result) == [culprit]
    assert result.checks <= 2 * math.ceil(math.log2(length)) + 10
    assert result.checks == len(reducer.seen)


def test_linear_checks_each_node_once(reducer) -> None:
    result = reducer(chain(20), has("n7", "n13"), mode="linear")
    assert names(reducer.result) == ["n7", "n13"]
    assert result.checks <= 20 + 3 + 2 + 8  # the original and the result again, to see whether the failure is flaky


def test_nodes_without_names_are_reduced_like_others(reducer) -> None:
    made = chain(30, ("Relu", "Neg", "Abs"), names=False)
    made.graph.node[17].op_type = "Exp"
    reducer(made, lambda candidate: any(node.op_type == "Exp" for node in candidate.graph.node))
    assert [node.op_type for node in reducer.result.graph.node] == ["Exp"]


def test_the_original_is_checked_first_and_the_result_last(reducer) -> None:
    reducer(seeds_example(), has("onnx_graphsurgeon_node_3"))
    assert len(reducer.seen[0].graph.node) == 5
    assert reducer.seen[-1] == reducer.result


def test_an_original_that_passes_is_refused_and_nothing_is_written(reducer) -> None:
    with pytest.raises(errors.OriginalPasses, match="does not fail"):
        reducer(chain(3), lambda candidate: False)
    assert list(reducer.folder.iterdir()) == []


def test_a_check_that_fails_on_anything_is_reported_loudly_and_may_be_allowed(reducer) -> None:
    told = []
    reducer(chain(3), lambda candidate: True, listener=told.append, allow_vacuous_check=True)
    assert any("Identity" in getattr(event, "text", "") and event.warning for event in told)
    assert len(reducer.result.graph.node) == 1


def test_a_check_that_contradicts_itself_at_the_end_is_an_error(reducer) -> None:
    answers = iter([True, False, True, False])  # the original, Identity, one half, and then the result
    with pytest.raises(errors.CheckError, match="when it is checked again"):
        reducer(chain(2), lambda candidate: next(answers))


def test_another_exception_than_the_originals_does_not_lead_astray(reducer) -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        if "n5" in names(candidate):
            raise ValueError("the failure")
        raise KeyError("another failure")

    result = reducer(chain(16), fails)
    assert names(reducer.result) == ["n5"]
    assert sum(result.other_failures.values()) > 0


def test_the_passing_model_closest_in_size_is_written(reducer, tmp_path: Path) -> None:
    result = reducer(chain(32), has("n9", "n10"), min_good=tmp_path / "good.onnx")
    good = onnx.load(tmp_path / "good.onnx")
    assert result.min_good == tmp_path / "good.onnx"
    assert not has("n9", "n10")(good)
    assert abs(len(good.graph.node) - len(reducer.result.graph.node)) <= 1


def test_without_reducing_inputs_only_nodes_from_the_end_go_and_inputs_stay(reducer) -> None:
    made = seeds_example()
    reducer(made, has("onnx_graphsurgeon_node_3"), no_reduce_inputs=True)
    assert names(reducer.result) == ["onnx_graphsurgeon_node_1", "onnx_graphsurgeon_node_3"]
    assert [entry.name for entry in reducer.result.graph.input] == ["X0", "Y0"]
    assert all([entry.name for entry in candidate.graph.input][:1] == ["X0"] for candidate in reducer.seen)


@pytest.mark.parametrize("mode", ["bisect", "linear"])
def test_without_reducing_outputs_only_nodes_from_the_beginning_go_and_outputs_stay(reducer, mode: str) -> None:
    reducer(seeds_example(), has("onnx_graphsurgeon_node_7"), no_reduce_outputs=True, mode=mode)
    assert names(reducer.result) == ["onnx_graphsurgeon_node_7", "onnx_graphsurgeon_node_9"]
    assert [entry.name for entry in reducer.result.graph.output] == ["out"]


def test_a_failure_that_is_not_monotone_still_gives_a_failing_result(reducer) -> None:
    """Absent from larger candidates, present in smaller ones: what a fusion does."""

    def fails(candidate: onnx.ModelProto) -> bool:
        kept = set(names(candidate))
        return "n5" in kept and not ("n6" in kept and "n9" not in kept)

    reducer(chain(16), fails, mode="linear")
    assert fails(reducer.result)


def test_names_and_types_at_the_border_are_those_of_the_original(reducer) -> None:
    made = model(
        [helper.make_node("Relu", ["x"], ["a"], name="n0"), helper.make_node("Exp", ["a"], ["b"], name="n1"),
         helper.make_node("Neg", ["b"], ["y"], name="n2")],
        [info("x", ("N", 3))], [info("y", ("N", 3))],
    )  # fmt: skip
    reducer(made, has("n1"))
    (entry,) = reducer.result.graph.input
    (result,) = reducer.result.graph.output
    assert (entry.name, result.name) == ("a", "b")
    assert [dim.dim_param for dim in entry.type.tensor_type.shape.dim][:1] == ["N"]
    assert entry.type.tensor_type.elem_type == FLOAT


def test_given_input_shapes_make_every_border_static(reducer) -> None:
    made = model(
        [helper.make_node("Relu", ["x"], ["a"], name="n0"), helper.make_node("Exp", ["a"], ["b"], name="n1")],
        [info("x", ("N", 3))], [info("b", ("N", 3))], value_info=[info("a", ("N", 3))],
    )  # fmt: skip
    reducer(made, has("n1"), input_shapes={"x": (5, 3)})
    for candidate in reducer.seen:
        for entry in (*candidate.graph.input, *candidate.graph.output):
            if entry.name in {"x", "a", "b"} and entry.type.tensor_type.HasField("shape"):
                assert [dim.dim_value for dim in entry.type.tensor_type.shape.dim] == [5, 3]
    assert [dim.dim_value for dim in reducer.result.graph.input[0].type.tensor_type.shape.dim] == [5, 3]


def reshaping() -> onnx.ModelProto:
    """The shape of a Reshape is computed from its data's shape: an integer branch."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["rows"], name="gather"),
        helper.make_node("Concat", ["rows", "rest"], ["to"], name="concat", axis=0),
        helper.make_node("Reshape", ["r", "to"], ["y"], name="reshape"),
    ]
    weights = [weight("zero", 0, dtype="int64", shape=(1,)), weight("rest", -1, dtype="int64")]
    return model(nodes, [info("x", (4, 6))], [info("y", (4, 6))], weights)


def test_a_shape_that_is_cut_is_frozen_with_its_recorded_value(reducer) -> None:
    reducer(reshaping(), has("reshape"))
    frozen = {entry.name: onnx.numpy_helper.to_array(entry).tolist() for entry in reducer.result.graph.initializer}
    assert frozen == {"to": [4, -1]}
    assert [entry.name for entry in reducer.result.graph.input] == ["r"]


def test_a_shape_that_depends_on_a_dynamic_dimension_is_fed(reducer) -> None:
    made = reshaping()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    reducer(made, has("reshape"))
    assert [entry.name for entry in reducer.result.graph.input] == ["r", "to"]


def test_integers_that_differ_between_the_samples_are_fed(reducer) -> None:
    made = model(
        [helper.make_node("Cast", ["x"], ["i"], name="c", to=INT64), helper.make_node("Neg", ["i"], ["y"], name="neg")],
        [info("x")], [info("y", elem=INT64)],
    )  # fmt: skip
    samples = [{"x": np.full((2, 2), value, np.float32)} for value in (1, 2)]
    reducer(made, has("neg"), inputs=samples)
    assert [entry.name for entry in reducer.result.graph.input] == ["i"]
    reducer(made, has("neg"), inputs=samples[:1] * 2)
    assert onnx.numpy_helper.to_array(reducer.result.graph.initializer[0]).tolist() == [[1, 1], [1, 1]]


def test_a_constant_node_that_is_cut_becomes_an_initializer_without_any_run(reducer) -> None:
    constant = helper.make_node("Constant", [], ["c"], name="constant", value=weight("any", 1.5, 2.5))
    made = model(
        [constant, helper.make_node("NotInAnyEngine", ["x", "c"], ["y"], name="odd", domain="my")],
        [info("x")], [info("y")], domains=["my"],
    )  # fmt: skip
    reducer(made, has("odd"))
    (kept,) = reducer.result.graph.initializer
    assert (kept.name, onnx.numpy_helper.to_array(kept).tolist()) == ("c", [1.5, 2.5])


def test_a_model_that_no_engine_can_run_can_be_reduced(reducer) -> None:
    nodes = [
        helper.make_node("Odd", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}", domain="my") for i in range(9)
    ]  # no type is known for any inner tensor
    reducer(model(nodes, [info("t0")], [info("t9")], domains=["my"]), has("n4"))
    assert has("n4")(reducer.result)


@pytest.mark.parametrize("mode", ["bisect", "linear"])
def test_bodies_take_what_they_capture_with_them(reducer, mode: str) -> None:
    then = helper.make_graph([helper.make_node("Neg", ["r"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([helper.make_node("Exp", ["r"], ["e"])], "else", [], [info("e")])
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("If", ["c"], ["i"], name="if", then_branch=then, else_branch=other),
            helper.make_node("Relu", ["i"], ["y"], name="after"),
        ],
        [info("x"), info("c", (), BOOL)],
        [info("y")],
    )
    reducer(made, has("if"), mode=mode)
    assert names(reducer.result) == ["if"]
    assert [entry.name for entry in reducer.result.graph.input] == ["c", "r"]
    onnx.checker.check_model(reducer.result, full_check=True)


def test_loops_and_local_functions_are_kept_whole(reducer) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Twice", ["v"], ["w"], domain="my")],
        "body", [info("n", (), INT64), info("go", (), BOOL), info("v")], [info("go_on", (), BOOL), info("w")],
    )  # fmt: skip
    twice = helper.make_function(
        "my", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    unused = helper.make_function(
        "my", "Unused", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Loop", ["count", "", "r"], ["l"], name="loop", body=body),
            helper.make_node("Unused", ["l"], ["y"], name="after", domain="my"),
        ],
        [info("x")],
        [info("y")],
        [weight("count", 3, dtype="int64", shape=())],
        functions=[twice, unused],
        domains=["my"],
    )
    reducer(made, has("loop"), mode="linear")  # which does not reduce inside them
    assert names(reducer.result) == ["loop"]
    assert [function.name for function in reducer.result.functions] == ["Twice"]


def with_external_weights(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(6)]
    weights = [weight(f"w{i}", *([float(i)] * 400), shape=(20, 20)) for i in range(6)]
    made = model(nodes, [info("t0", (20, 20))], [info("t6", (20, 20))], weights)
    path = folder / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    return path


def test_candidates_find_external_weights_and_the_result_has_its_own(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path / "deep" / "model")
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    loaded = []

    def check(candidate: Path) -> bool:
        found = onnx.load(candidate)  # with its weights; onnx refuses what is not beside or below the model
        loaded.append([onnx.numpy_helper.to_array(entry)[0, 0] for entry in found.graph.initializer])
        return has("n3")(found)

    result = reduce(path, check, tmp_path / "reduced.onnx")
    reduced = onnx.load(tmp_path / "reduced.onnx", load_external_data=False)
    assert names(reduced) == ["n3"]
    assert onnx.numpy_helper.to_array(reduced.graph.initializer[0]).tolist() == [[3.0] * 20] * 20
    assert result.checks == len(loaded)
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(errors.ModelError, match=r"weights\.bin"):
        reduce(path, lambda candidate: True, tmp_path / "reduced.onnx")


def test_a_result_that_cannot_be_written_is_refused_before_any_check(tmp_path: Path) -> None:
    path = save(chain(3), tmp_path / "model.onnx")
    with pytest.raises(errors.UsageError, match="is not a folder"):
        reduce(path, pytest.fail, path / "reduced.onnx")


def test_an_interrupted_reduction_leaves_the_best_so_far(reducer) -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        if len(candidate.graph.node) == 4:
            raise KeyboardInterrupt
        return has_any("n0", "n1")(candidate)

    with pytest.raises(errors.Interrupted) as stopped:
        reducer(chain(32), fails)
    assert "reduced.onnx" in str(stopped.value.kept)
    assert len(reducer.result.graph.node) == 8


def integers_before_and_after(middle: onnx.NodeProto) -> onnx.ModelProto:
    """Shapes computed beside and behind a node in the middle."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
        helper.make_node("Neg", ["s"], ["s2"], name="neg"),
        middle,
        helper.make_node("Shape", ["m"], ["late"], name="late"),
        helper.make_node("Add", ["late", "s2"], ["y"], name="add"),
    ]
    return model(nodes, [info("x", (4, 6))], [info("y", (2,), INT64)], domains=["my"], value_info=[info("m", (4, 6))])


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param(helper.make_node("Odd", ["r"], ["m"], name="odd", domain="my"), id="an operator nobody knows"),
        pytest.param(helper.make_node("Det", ["r"], ["m"], name="odd"), id="a node that fails when it runs"),
    ],
)
def test_tensors_that_do_not_depend_on_a_node_that_cannot_run_are_recorded(reducer, middle) -> None:
    reducer(integers_before_and_after(middle), has("add"))
    (frozen,) = reducer.result.graph.initializer
    assert (frozen.name, onnx.numpy_helper.to_array(frozen).tolist()) == ("s2", [-4, -6])
    assert [entry.name for entry in reducer.result.graph.input] == ["late"]


def test_a_model_that_no_engine_knows_is_not_run_at_all(reducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only thing replaced is the child process, to see that it is not asked for."""
    monkeypatch.setattr("biopsy.engines.worker.Worker.run", lambda *args, **options: pytest.fail("it was run"))
    nodes = [helper.make_node("Odd", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}", domain="my") for i in range(9)]
    typed = [info(f"t{i}", elem=INT64) for i in range(1, 9)]
    made = model(nodes, [info("t0", elem=INT64)], [info("t9", elem=INT64)], domains=["my"], value_info=typed)
    reducer(made, has("n4"))
    assert names(reducer.result) == ["n4"]


def test_a_failure_that_is_masked_later_is_found_in_as_few_checks_as_any(reducer) -> None:
    """It is seen only where the culprit's own output is one of the candidate's."""

    def fails(candidate: onnx.ModelProto) -> bool:
        return "t524" in [entry.name for entry in candidate.graph.output] and has("n523")(candidate)

    with pytest.raises(errors.OriginalPasses, match="--mark-intermediate"):
        reducer(chain(1000), fails)
    result = reducer(chain(1000), fails, mark_intermediate=True)
    assert result.kept == (523,)
    assert result.checks <= 2 * math.ceil(math.log2(1000)) + 10
