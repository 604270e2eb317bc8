"""What onnx says of a model, node by node."""

from pathlib import Path

import onnx
import pytest

from biopsy.linting.specification import entries
from support.models import save

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
    found = list(entries(path, whole=True))
    assert {node for entry in found for node in entry.nodes} == blamed
