import onnx
from onnx import helper

from biopsy.reduction.passes.names import names, names_left
from support.control_flow import branching, looping
from support.models import chain, info, model, weight
from support.passes import assert_valid, run_pass


def telling() -> onnx.ModelProto:
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "corp", "SecretF", ["in_a"], ["out_b"], [helper.make_node("Neg", ["in_a"], ["out_b"], name="hush")], opset
    )
    nodes = [
        helper.make_node("SecretF", ["user_id"], ["embedded"], domain="corp", name="lookup"),
        helper.make_node("Add", ["embedded", "table"], ["score"], name="rank"),
    ]
    made = model(nodes, [info("user_id", ("customers", 2))], [info("score", ("customers", 2))],
                 [weight("table", 1.0, 2.0)], functions=[function], domains=["corp"])  # fmt: skip
    made.graph.name = "prototype"
    made.graph.value_info.append(info("embedded", ("customers", 2)))
    return made


def test_no_name_is_left_and_the_model_is_the_same_otherwise() -> None:
    run = run_pass(names, telling())
    data = run.model.SerializeToString()
    for told in (
        "Secret",
        "user",
        "embedded",
        "score",
        "table",
        "lookup",
        "rank",
        "in_a",
        "out_b",
        "hush",
        "customers",
    ):
        assert told.encode() not in data, told
    assert b"prototype" not in data
    assert len(run.tried) == 1
    assert_valid(run.model)
    assert run_pass(names, run.model).tried == []


def test_a_name_that_the_failure_needs_stays() -> None:
    run = run_pass(names, telling(), lambda candidate: any(node.name == "rank" for node in candidate.graph.node))
    assert [node.name for node in run.model.graph.node] == ["n0", "rank"]
    assert b"user_id" not in run.model.SerializeToString()
    assert "names not replaced: rank" in "\n".join(names_left(run.model))


def test_a_neutral_name_that_is_taken_by_one_that_stays_is_not_given_twice() -> None:
    made = model(
        [helper.make_node("Relu", ["t1"], ["a"]), helper.make_node("Neg", ["a"], ["b"])], [info("t1")], [info("b")]
    )
    run = run_pass(names, made, lambda candidate: candidate.graph.input[0].name == "t1")
    assert_valid(run.model)
    used = [run.model.graph.input[0].name, *(name for node in run.model.graph.node for name in node.output)]
    assert len(set(used)) == 3


def test_bodies_and_their_captures_are_renamed_together() -> None:
    for made in (branching(), looping()):
        result = run_pass(names, made).model
        assert_valid(result)
        assert b"go_on" not in result.SerializeToString()


def test_names_that_cannot_be_replaced_are_reported() -> None:
    odd = helper.make_node("OurOperator", ["x"], ["y"], domain="corp", recipe="secret")
    told = "\n".join(names_left(run_pass(names, model([odd], [info("x")], [info("y")], domains=["corp"])).model))
    assert "corp.OurOperator" in told
    assert "recipe" in told
    assert names_left(run_pass(names, chain(2)).model) == []
