import onnx
import pytest
from onnx import helper

from biopsy.model.sources import source_of
from biopsy.reduction.passes.removal import exporter_notes, tidy
from support.exporters import exported
from support.models import BOOL, chain, info, model, weight
from support.passes import assert_valid, run_pass


def untidy() -> onnx.ModelProto:
    made = chain(2)
    made.producer_name, made.doc_string = "exporter", "secret"
    made.graph.node[0].doc_string = "where it came from"
    made.graph.metadata_props.add(key="namespace", value="layer")
    made.graph.initializer.append(weight("unused", 1.0))
    made.graph.value_info.append(info("gone"))
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    inner = [helper.make_node("Neg", ["a"], ["b"])]
    made.functions.append(helper.make_function("com.example", "F", ["a"], ["b"], inner, [helper.make_opsetid("", 17)]))
    return made


def test_everything_goes_in_one_proposal() -> None:
    run = run_pass(tidy, untidy())
    assert len(run.tried) == 1
    assert run.model == chain(2)
    assert_valid(run.model)


def test_a_tidy_model_is_left_alone() -> None:
    assert run_pass(tidy, chain(2)).tried == []
    assert run_pass(tidy, onnx.ModelProto()).tried == []


def test_only_parts_that_the_failure_needs_stay() -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        return candidate.producer_name == "exporter" and len(candidate.functions) == 1

    run = run_pass(tidy, untidy(), fails)
    assert [function.name for function in run.model.functions] == ["F"]
    assert run.model.producer_name == "exporter"
    assert not run.model.graph.initializer
    assert not run.model.doc_string
    assert len(run.tried) < 20


def test_weights_of_ir_3_leave_the_inputs_too() -> None:
    made = chain(1)
    made.ir_version = 3
    made.graph.initializer.append(weight("unused", 1.0))
    made.graph.input.append(info("unused", (1,)))
    result = run_pass(tidy, made).model
    assert [entry.name for entry in result.graph.input] == ["t0"]


def test_dead_nodes_in_bodies_and_parts_that_only_they_use_are_removed_at_once() -> None:
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["dead"]), helper.make_node("Neg", ["x"], ["t"])],
        "then", [], [info("t")], value_info=[info("dead")],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["e"])], "else", [], [info("e")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = model([node], [info("x"), info("c", (), BOOL)], [info("y")], [weight("w", 1.0)])
    run = run_pass(tidy, made)
    assert len(run.tried) == 1
    assert not run.model.graph.initializer
    assert_valid(run.model)
    assert run_pass(tidy, run.model).tried == []


@pytest.mark.parametrize("name", ["pytorch", "torchscript"])
def test_exporters_notes_on_nodes_stay_and_other_documentation_is_removed(name: str) -> None:
    made = exported(name)
    sources = [source_of(node.SerializeToString()) for node in made.graph.node]
    made.graph.node[0].doc_string += "" if name == "torchscript" else "no stack"
    result = run_pass(tidy, made).model
    assert [source_of(node.SerializeToString()) for node in result.graph.node] == sources
    assert not result.producer_name and not result.graph.metadata_props
    assert bool(result.graph.node[0].doc_string) == (name == "torchscript")


@pytest.mark.parametrize("name", ["pytorch", "torchscript"])
def test_exporters_notes_are_removed_on_request(name: str) -> None:
    run = run_pass(exporter_notes, exported(name))
    assert len(run.tried) == 1
    assert not any(node.metadata_props or node.doc_string for node in run.model.graph.node)
    assert run_pass(exporter_notes, run.model).tried == []
