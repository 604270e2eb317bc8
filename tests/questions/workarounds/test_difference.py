"""The difference between a model and a changed one, as a person reads it."""

from __future__ import annotations

import onnx
from onnx import helper

from biopsy.questions.workarounds.changes import marks
from biopsy.questions.workarounds.question import Patch
from biopsy.questions.workarounds.spellings.table import barriers, spellings
from biopsy.questions.workarounds.verification import difference
from support.control_flow import body, branching
from support.models import info, model


def _mean() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="act"),
        helper.make_node("ReduceMax", ["r"], ["y"], name="max", axes=[1], keepdims=0),
    ]
    return model(nodes, [info("x")], [info("y", (2,))])


def _applied(patch: Patch, made: onnx.ModelProto) -> onnx.ModelProto:
    found = patch.applied(made)
    assert found is not None
    return found


def test_a_model_does_not_differ_from_itself() -> None:
    assert difference(branching(), branching()) == ()


def test_nodes_that_come_and_go_are_listed_with_what_they_read_and_write() -> None:
    made = _mean()
    patch = next(each for each in spellings(made, [1]) if each.name == "reduction-with-kept-axes")
    assert difference(made, _applied(patch, made)) == (
        "+ Squeeze 'y/Squeeze'(y/ReduceMax, y/Constant) -> y",
        "~ ReduceMax 'max'(r) -> y/ReduceMax  [axes=[1], keepdims=1]: writes y/ReduceMax, not y, keepdims 0 -> 1",
        "+ 1 constant",
    )


def test_casts_stand_behind_the_other_new_nodes() -> None:
    made = _mean()
    found = difference(made, _applied(next(each for each in barriers(made, [0]) if each.name == "cast-pair"), made))
    assert [line.partition("[")[2] for line in found if line.startswith("+ Cast")] == ["to=float64]", "to=float32]"]
    assert [line for line in found if not line.startswith("+ Cast")] == [
        "~ Relu 'act'(x) -> r/Relu: writes r/Relu, not r"
    ]


def test_a_node_without_a_name_is_known_by_what_it_reads() -> None:
    made = _mean()
    made.graph.node[0].ClearField("name")
    found = difference(made, _applied(next(each for each in barriers(made, [0]) if each.name == "cast-pair"), made))
    assert found[-1].endswith(": writes r/Relu, not r")


def test_a_mark_is_one_more_output() -> None:
    made = _mean()
    (patch,) = marks(made, [0, 1])
    assert difference(made, _applied(patch, made)) == ("+ output r float32[2,2]",)


def test_changed_attributes_and_inputs_are_said() -> None:
    old, new = _mean(), _mean()
    new.graph.node[1].attribute[0].ints[0] = 0
    new.graph.node[1].input[0] = "x"
    assert difference(old, new) == (
        "~ ReduceMax 'max'(x) -> y  [axes=[0], keepdims=0]: input 0 r -> x, axes [1] -> [0]",
    )


def test_what_is_different_in_a_body_is_said_with_its_place() -> None:
    old, new = branching(), branching()
    body(new, "then_branch", 1).node[2].op_type = "Log"
    assert difference(old, new) == (
        "- If 'if', then_branch: Exp 'exp'(t1) -> t",
        "+ If 'if', then_branch: Log 'exp'(t1) -> t",
    )


def test_names_of_strangers_are_made_printable() -> None:
    old, new = _mean(), _mean()
    new.graph.node[0].name = "a\x1b[2Jb"
    new.graph.node[0].op_type = "Neg"
    assert all("\x1b" not in line for line in difference(old, new))
