"""Marking tensors as outputs."""

from collections.abc import Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from biopsy import errors
from biopsy.model.extract import OutputChoice, choose_outputs, mark_outputs
from biopsy.model.known_names import inside_a_check
from support.models import INT64, chain, info, model, seeds_example, weight


def names(made: onnx.ModelProto, wanted: "str | Sequence[str]" = "all") -> list[str]:
    marked = onnx.ModelProto.FromString(mark_outputs(made.SerializeToString(), wanted))
    return [output.name for output in marked.graph.output]


def test_all_adds_every_computed_tensor_after_the_models_own_outputs():
    assert names(seeds_example()) == ["out", "x", "Ax", "y", "axpy"]


def test_names_replace_the_outputs_in_the_order_given():
    assert names(seeds_example(), ["axpy", "Ax"]) == ["axpy", "Ax"]


def test_a_name_given_twice_is_marked_once():
    assert names(seeds_example(), ["Ax", "Ax"]) == ["Ax"]


def test_a_pattern_stands_for_all_tensors_that_match():
    assert names(seeds_example(), ["ax*", "Ax"]) == ["axpy", "Ax"]


def test_an_unknown_name_is_refused_with_the_nearest_names():
    with pytest.raises(errors.UsageError, match="no tensor 'axpi'") as caught:
        names(seeds_example(), ["axpi"])
    assert "'axpy'" in caught.value.next_steps[0]


def test_everything_else_of_the_model_stays():
    made = seeds_example()
    marked = onnx.ModelProto.FromString(mark_outputs(made.SerializeToString(), "all"))
    del marked.graph.output[:], made.graph.output[:]
    assert marked == made


def test_marking_the_same_outputs_again_changes_nothing():
    once = mark_outputs(seeds_example().SerializeToString(), "all")
    assert mark_outputs(once, "all") == once


def test_declared_types_are_kept_and_unknown_ones_are_left_open():
    made = chain(2)
    made.graph.value_info.append(info("t1", ("N", 2)))
    marked = onnx.ModelProto.FromString(mark_outputs(made.SerializeToString(), ["t1"]))
    assert marked.graph.output[0] == info("t1", ("N", 2))
    plain = onnx.ModelProto.FromString(mark_outputs(chain(2).SerializeToString(), ["t1"]))
    assert not plain.graph.output[0].HasField("type")


def test_outputs_of_constant_nodes_are_left_out():
    constant = helper.make_node("Constant", [], ["c"], value=weight("", 1.0, shape=(1,)))
    made = model([constant, helper.make_node("Add", ["a", "c"], ["b"])], [info("a")], [info("b")])
    assert names(made) == ["b"]


def test_sequences_and_optionals_are_left_out_also_when_no_type_is_declared():
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "a"], ["s"]),
        helper.make_node("Identity", ["s"], ["s2"]),
        helper.make_node("Optional", ["a"], ["o"]),
        helper.make_node("SequenceAt", ["s2", "i"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"]),
    ]
    made = model(nodes, [info("a"), info("i", (), INT64)], [info("c")])
    assert names(made) == ["c", "b"]


def test_tensors_inside_bodies_are_left_out():
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["inner"])], "body", [], [info("inner")])
    branch = helper.make_node("If", ["cond"], ["b"], then_branch=body, else_branch=body)
    made = model([branch, helper.make_node("Abs", ["b"], ["c"])], [info("a"), info("cond", (), 9)], [info("c")])
    assert names(made) == ["c", "b"]


def test_missing_optional_outputs_are_no_tensors():
    nodes = [helper.make_node("Dropout", ["a"], ["b", ""]), helper.make_node("Neg", ["b"], ["c"])]
    assert names(model(nodes, [info("a")], [info("c")])) == ["c", "b"]


def test_an_input_that_is_an_output_stays_one():
    made = model([helper.make_node("Neg", ["a"], ["b"])], [info("a")], [info("a"), info("b")])
    assert names(made) == ["a", "b"]


def test_external_weights_are_not_looked_at():
    absent = TensorProto(name="w", data_type=1, dims=[2, 2], data_location=TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value="nowhere.bin")
    made = model([helper.make_node("Add", ["a", "w"], ["b"])], [info("a")], [info("b")], [absent])
    assert names(made) == ["b"]


def test_a_name_that_a_candidate_lacks_may_be_excluded_from_its_outputs() -> None:
    data, choice = seeds_example().SerializeToString(), OutputChoice(names="all", without=["gone", "a*"])
    with pytest.raises(errors.DoesNotFit, match="no tensor 'gone' to leave out"):
        choose_outputs(data, choice)
    with inside_a_check():
        left = onnx.ModelProto.FromString(choose_outputs(data, choice))
    assert [output.name for output in left.graph.output] == ["out", "x", "Ax", "y"]
