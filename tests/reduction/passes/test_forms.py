"""The other form of every cut: what is frozen has the values of the user's world, or those of no golden values."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import biopsy
from support.models import info, model, weight

Node = helper.make_node
X = np.arange(1, 5, dtype=np.float32).reshape(2, 2)


def _chain(first: str) -> onnx.ModelProto:
    """a = f(x), b = a + 1, y = b * 2; z = |x|, apart from these."""
    nodes = [Node(first, ["x"], ["a"]), Node("Add", ["a", "one"], ["b"]), Node("Mul", ["b", "two"], ["y"])]
    nodes = [Node(node.op_type, node.input, node.output, name=node.output[0]) for node in nodes]
    ends = [info("x", (2, 2))], [info("y", (2, 2)), info("z", (2, 2))]
    return model([*nodes, Node("Abs", ["x"], ["z"], name="z")], *ends, [weight("one", 1.0), weight("two", 2.0)])


@pytest.mark.parametrize("given", [("z",), ("z", "y"), ("z", "b"), ("z", "a"), ("z", "a", "b")], ids=" ".join)
def test_a_node_that_golden_values_do_not_blame_is_not_the_result(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Neg should have been Relu; golden values and inputs hold ``given`` besides, and say nothing of other tensors."""
    right = biopsy.run(_chain("Relu"), inputs={"x": X}, outputs="all")[0].iterations[0].outputs
    golden = {name: right[name] for name in {*given, "y"}}
    layerwise = {"x": X, **{name: right[name] for name in given}}

    def fails(path: Path) -> bool:
        session = ort.InferenceSession(path)
        fed = [entry.name for entry in session.get_inputs()]
        if not layerwise.keys() >= {*fed}:
            raise biopsy.CannotCompare("it is fed in its middle")
        outputs = {entry.name: entry for entry in session.get_outputs()}.keys() & golden.keys()
        got = dict(zip(outputs, session.run([*outputs], {name: layerwise[name] for name in fed}), strict=True))
        return not all(np.allclose(value, golden[name]) for name, value in got.items())

    found = biopsy.reduce(_chain("Neg"), fails, tmp_path / "r.onnx", inputs=[layerwise], values="keep")
    assert any("'a'" in node for node in found.nodes), found.nodes
