"""What neither the whole model nor isolated layers explain."""

import pytest
from onnx import helper

from biopsy.comparison.tolerance import Tolerances
from biopsy.questions.layers.question import Judge
from support.models import info, model, weight


@pytest.mark.slow
def test_rounding_that_adds_up_is_no_layers_fault(examine) -> None:
    """Each layer is off by half a bit; two hundred of them together are out of the tolerances."""
    nodes = [helper.make_node("Mul", [f"t{i}", "w"], [f"t{i + 1}"], name=f"n{i}") for i in range(200)]
    made = model(nodes, [info("t0")], [info("t200")], [weight("w", 1.01)])
    judge = Judge(Tolerances({"": 0.0}, {"": 3e-7}))
    found = examine(made, "onnxrt", reference="reference:float64", judge=judge)
    assert not found.outputs[0].passed and found.suspects == [] and not found.passed
    assert any("accumulated or amplified rounding" in remark for remark in found.remarks)
