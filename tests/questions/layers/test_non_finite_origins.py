"""Where NaN and infinities begin."""

import numpy as np
import pytest
from onnx import helper

from biopsy.engines.runner import Inputs
from support.examinations import REFERENCE, growing, labels
from support.models import info, model, weight


@pytest.mark.slow
def test_nan_begins_at_the_layer_whose_inputs_are_finite(examine) -> None:
    found = examine(growing(30), "fake:nan.n7=0.5,seed=1")
    assert [(one.engine, one.label, one.tensor) for one in found.non_finite_origins] == [
        ("fake:nan.n7=0.5,seed=1", "Neg 'n7'", "t8")
    ]
    assert found.non_finite_origins[0].nan > 0 and labels(found) == ["Neg 'n7'"]


def test_nan_that_both_engines_have_is_told_and_is_no_error(examine) -> None:
    nodes = [helper.make_node(op, [x], [y], name=op) for op, x, y in (("Log", "x", "a"), ("Neg", "a", "y"))]
    found = examine(
        model(nodes, [info("x")], [info("y")]), "onnxrt", Inputs(given=[{"x": -np.ones((2, 2), np.float32)}])
    )
    assert found.passed and [(one.engine, one.label) for one in found.non_finite_origins] == [
        (REFERENCE, "Log 'Log'"),
        ("onnxrt", "Log 'Log'"),
    ]


def test_a_weight_that_is_not_finite_is_an_origin_by_itself(examine) -> None:
    nodes = [helper.make_node("Add", ["x", "mask"], ["y"], name="add")]
    made = model(nodes, [info("x")], [info("y")], [weight("mask", 0, -np.inf, dtype="float32")])
    assert examine(made, "onnxrt").non_finite_origins == ()
