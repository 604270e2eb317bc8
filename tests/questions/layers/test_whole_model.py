"""The whole model in the suspect: its outputs, and whether they are the same in each run."""

from onnx import helper

from support.examinations import growing, verdicts
from support.models import info, model


def test_a_model_that_is_right_passes_and_nobody_is_accused(examine) -> None:
    found = examine(growing(20), "fake")
    assert found.passed and found.suspects == [] and set(verdicts(found).values()) == {"right"}


def test_random_layers_are_not_judged_and_what_varies_with_them_is_no_effect_of_observing(examine) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="random"),
        helper.make_node("Add", ["x", "r"], ["y"], name="add"),
    ]
    found = examine(model(nodes, [info("x")], [info("y")]), "reference")
    assert found.suspects == [] and found.layers[0].note == "it is random: not judged"
    assert found.marking_effects == () and any("from run to run" in remark for remark in found.remarks)
