import onnx
from onnx import helper

from biopsy.reduction.passes.removal import attributes
from support.models import chain, info, model, weight
from support.passes import assert_valid, run_pass


def convolution() -> onnx.ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["c"], group=1, strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[1, 1])
    softmax = helper.make_node("Softmax", ["c"], ["y"], axis=1)
    return model(
        [node, softmax],
        [info("x", (1, 2, 4, 4))],
        [info("y", (None,) * 4)],
        [weight("w", *[1.0] * 4, shape=(2, 2, 1, 1))],
    )


def test_attributes_with_a_default_are_removed_at_once() -> None:
    run = run_pass(attributes, convolution())
    assert not any(node.attribute for node in run.model.graph.node)
    assert len(run.tried) == 1
    assert_valid(run.model)


def test_the_one_that_matters_stays() -> None:
    def fails(candidate: onnx.ModelProto) -> bool:
        return any(entry.name == "strides" for node in candidate.graph.node for entry in node.attribute)

    run = run_pass(attributes, convolution(), fails)
    assert [entry.name for node in run.model.graph.node for entry in node.attribute] == ["strides"]


def test_required_attributes_bodies_and_operators_nobody_knows_are_left_alone() -> None:
    cast = helper.make_node("Cast", ["x"], ["y"], to=7)
    odd = helper.make_node("Odd", ["y"], ["z"], domain="my", mode=1)
    made = model([cast, odd], [info("x")], [info("z")], domains=["my"])
    assert run_pass(attributes, made).tried == []
    assert run_pass(attributes, chain(1)).tried == []
