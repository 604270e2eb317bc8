"""What onnx says of a model, node by node."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.questions.lint.specification import entries
from support.models import BOOL, info, model, save

CALLING = """
<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
g (float[2] x) => (float[2] y, float[2] z)
{{
   y = own.F(x)
   z = Relu(x)
}}
<domain: "own", opset_import: ["" : 17, "own" : 1]>
F (a) => (b)
{{
   c = own.G(a)
   b = Relu(c)
}}
<domain: "own", opset_import: ["" : 17]>
G (a) => (b)
{{
   b = Neg({read})
}}"""


@pytest.mark.parametrize(("read", "blamed"), [("a", set()), ("a, a", {0})])
def test_a_function_is_held_against_the_nodes_that_call_it(tmp_path: Path, read: str, blamed: set[int]) -> None:
    path = save(onnx.parser.parse_model(CALLING.format(read=read)), tmp_path / "m.onnx")
    found = list(entries(path, is_complete=True))
    assert {node for entry in found for node in entry.nodes} == blamed


SHADOWING = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[2] x, bool c) => (float[2] y, float[2] z)
{
   t = Neg(x)
   z = Relu(t)
   y = If(c) <then_branch = a () => (float[2] t) { t = Neg(x) }, else_branch = b () => (float[2] u) { u = Abs(x) }>
}"""


@pytest.mark.parametrize("is_complete", [True, False])
def test_nodes_that_are_at_fault_only_together_are_told_of_too(tmp_path: Path, is_complete: bool) -> None:
    path = save(onnx.parser.parse_model(SHADOWING), tmp_path / "m.onnx")
    (found,) = entries(path, is_complete=is_complete)
    assert found.level == "exception" and "single static assignment" in found.message


@pytest.mark.parametrize("is_complete", [True, False])
def test_weights_of_bodies_and_attributes_may_stand_in_files(tmp_path: Path, is_complete: bool) -> None:
    values = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    body = helper.make_graph([helper.make_node("Add", ["k", "w"], ["b"])], "body", [], [info("b", (2000,))], [values])
    made = model(
        [
            helper.make_node("Constant", [], ["k"], value=values),
            helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        ],
        [info("c", (), BOOL)],
        [info("y", (2000,))],
    )
    onnx.save_model(
        made, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, convert_attribute=True, location="w"
    )
    assert not list(entries(tmp_path / "m.onnx", is_complete=is_complete))
