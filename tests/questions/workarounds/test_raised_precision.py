"""Nodes computed in a higher precision, with casts around them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from biopsy.questions.workarounds.changes import raised_precisions
from biopsy.questions.workarounds.question import Patch
from questions.workarounds.spellings.proving import run
from support.models import info, model, weight


def _sums(elem: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A difference of great sums, which float32 loses: MatMul, Sub, Exp."""
    dtype = "float16" if elem == TensorProto.FLOAT16 else "float32"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("Sub", ["a", "x"], ["b"], name="b"),
        helper.make_node("Transpose", ["b"], ["c"], name="c"),
        helper.make_node("Exp", ["c"], ["y"], name="y"),
    ]
    return model(
        nodes, [info("x", elem=elem)], [info("y", elem=elem)], [weight("w", 1, 2, 3, 4, shape=(2, 2), dtype=dtype)]
    )


def _applied(patch: Patch, made: onnx.ModelProto) -> onnx.ModelProto:
    found = patch.applied(made)
    assert found is not None
    onnx.checker.check_model(found, full_check=True)
    assert [each.SerializeToString() for each in found.graph.output] == [
        each.SerializeToString() for each in made.graph.output
    ]
    return found


def _elems(made: onnx.ModelProto, operator: str) -> set[int]:
    """The types of what nodes of an operator read."""
    typed = onnx.shape_inference.infer_shapes(made)
    kinds = {
        each.name: each.type.tensor_type.elem_type
        for each in (*typed.graph.value_info, *typed.graph.input, *typed.graph.output)
    }
    return {kinds[name] for node in made.graph.node if node.op_type == operator for name in node.input if name in kinds}


def test_each_node_alone_and_then_all_together() -> None:
    found = raised_precisions(_sums(), [0, 1, 3])
    assert [patch.nodes for patch in found] == [(0,), (1,), (3,), (0, 1, 3)]
    assert {patch.name for patch in found} == {"in-float64"}


def test_only_the_named_nodes_are_computed_in_float64() -> None:
    made = _sums()
    patch = next(each for each in raised_precisions(made, [0, 1]) if each.nodes == (0, 1))
    found = _applied(patch, made)
    assert _elems(found, "MatMul") == _elems(found, "Sub") == {TensorProto.DOUBLE}
    assert _elems(found, "Exp") == {TensorProto.FLOAT}
    values = np.array([[0.5, -1], [2, 0.25]], np.float32)
    np.testing.assert_allclose(run(found, {"x": values})[0], run(made, {"x": values})[0], rtol=1e-5)


def test_between_nodes_that_are_raised_together_nothing_is_rounded() -> None:
    made = _sums()
    patch = next(each for each in raised_precisions(made, [0, 1]) if each.nodes == (0, 1))
    casts = [node for node in _applied(patch, made).graph.node if node.op_type == "Cast"]
    assert [node.attribute[0].i for node in casts].count(TensorProto.FLOAT) == 1


def test_of_fp16_float32_comes_before_float64() -> None:
    made = _sums(TensorProto.FLOAT16)
    assert {patch.name for patch in raised_precisions(made, [0])} == {"in-float32"}
    found = _applied(raised_precisions(made, [0])[0], made)
    assert _elems(found, "MatMul") == {TensorProto.FLOAT}
    assert _elems(found, "Exp") == {TensorProto.FLOAT16}


def test_nodes_that_compute_nothing_are_left_out() -> None:
    assert raised_precisions(_sums(), [2]) == []


def test_a_model_without_the_node_cannot_be_patched() -> None:
    made = _sums()
    patch = raised_precisions(made, [1])[0]
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "other"
    assert patch.applied(made) is None
