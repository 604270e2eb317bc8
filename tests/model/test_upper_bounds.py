"""Sizes that a model computes from values: those without a bound are found, and bounded."""

import onnx
import pytest

from biopsy.model.sanitize import set_upper_bounds, unbounded_shapes

COUNTED = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N] x, float[1] one, int64 zero, int64 step) => (float[K] y, int64[K] places, float[{again}] z)
{{
   found = NonZero(x)
   dims = Shape(found)
   count = ReduceMax<keepdims = 0>(dims)
   places = Range(zero, count, step)
   size = Shape(places)
   y = Expand(one, size)
   other = Neg(size)
   z = Expand(one, other)
}}"""


def counted(again: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(COUNTED.format(again=again))


@pytest.mark.parametrize(
    ("again", "unbounded"), [("K", ["count"]), ("L", ["count", "other"]), ("?", ["count", "other"])]
)
def test_a_named_dimension_is_bounded_once(again: str, unbounded: list[str]) -> None:
    model = counted(again)
    assert unbounded_shapes(model) == unbounded
    assert set_upper_bounds(model, {"": 5}) == dict.fromkeys(unbounded, 5)
    assert unbounded_shapes(model) == []


def test_finding_unbounded_shapes_does_not_change_the_model() -> None:
    model = counted("L")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    before = model.SerializeToString()
    assert unbounded_shapes(model) == ["count", "other"]
    assert model.SerializeToString() == before


def test_added_tensors_have_names_that_are_new_in_bodies_too() -> None:
    model = counted("L")
    text = "b () => (float count_copy) { count_copy = Constant<value = float {1}>() }"
    body = onnx.parser.parse_graph(text)
    made = onnx.helper.make_node("If", ["truth"], ["w"], then_branch=body, else_branch=body)
    model.graph.node.append(made)
    model.graph.input.append(onnx.helper.make_tensor_value_info("truth", onnx.TensorProto.BOOL, []))
    set_upper_bounds(model, {"count": 3})
    written = [name for node in model.graph.node for name in node.output]
    assert "count_copy_2" in written
    assert "count_copy" not in written
