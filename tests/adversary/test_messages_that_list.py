"""An engine that names everything that it refuses at once must not hold back a reduction to one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy import Rules
from support.models import save
from support.predicates import names

TEXT = """
<ir_version: 9, opset_import: ["" : 17, "my" : 1]>
g (float[2,4] x) => (float[2,4] y)
<float[2,4] p, float[2,4] q, float[2,4] r, float[2,4] s, float[2,4] t>
{
    [a] p = my.First (x)
    [b] q = Relu (p)
    [c] r = my.Second <k = 3> (q)
    [d] s = Neg (r)
    [e] t = my.Third (s)
    [f] y = Abs (t)
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("cold", [False, True])
def test_one_operator_of_those_that_openvino_refuses_is_the_same_failure(tmp_path: Path, cold: bool) -> None:
    pytest.importorskip("openvino")
    model = save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    if cold:  # a script that says nothing of itself
        script = tmp_path / "check.py"
        script.write_text("import sys, openvino\nopenvino.Core().read_model(sys.argv[1])\n")
        found = biopsy.reduce(
            model, [sys.executable, str(script), "{}"], tmp_path / "r.onnx", rules=Rules(match="message")
        )
    else:
        found = biopsy.reduce(model, ["biopsy", "run", "{}", "--openvino"], tmp_path / "r.onnx")
    assert len(found.nodes) == 1
    assert set(names(onnx.load(tmp_path / "r.onnx"))) <= {"a", "c", "e"}


def test_an_operator_that_the_original_does_not_have_is_another_failure(tmp_path: Path) -> None:
    """The sum over what is refused: a candidate whose list has nothing in common is not followed."""
    model = save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")

    def check(candidate: onnx.ModelProto) -> bool:
        refused = [node.op_type for node in candidate.graph.node if node.domain == "my"]
        if not refused:
            return False
        if "Third" not in refused:
            refused = ["Somebody", "Else"]
        raise ValueError(f"No conversion rule found for operations: {', '.join(refused)}")

    found = biopsy.reduce(model, check, tmp_path / "r.onnx", takes="model")
    assert found.nodes == ("Third 'e'",)
