"""Groups: layers that are right one by one and wrong together."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.demo import CULPRITS, demonstration_model
from biopsy.comparison.tolerance import Tolerances
from biopsy.engines.runner import Inputs
from biopsy.questions.layers.question import Judge
from support.bug import skip_without_it
from support.examinations import growing, labels
from support.models import chain, info, model
from support.planting import planted as planted

SIGNED = ("Relu", "Reciprocal", "Atan")


@pytest.mark.slow
def test_layers_that_fail_only_together_are_found_as_a_group(examine) -> None:
    found = examine(growing(60), "fake:crash.n7~n8=run")
    assert [group.labels for group in found.groups] == [("Neg 'n7'", "Neg 'n8'")]
    assert found.groups[0].failure is not None and found.groups[0].failure.kind == "SIGSEGV"


def test_a_failure_that_marking_a_tensor_hides_is_told_and_located_by_cuts(examine) -> None:
    found = examine(growing(40), "fake:scale.n7=1.5,unless_marked=t8")
    assert [(one.change, one.output, one.tensors) for one in found.marking_effects] == [("gone", "t40", ("t8",))]
    (group,) = found.groups
    assert len(group.nodes) == 2 and "Neg 'n7'" in group.labels and group.hides
    assert labels(found) == [" ".join(group.labels)]
    assert {layer.verdict for layer in found.layers} == {"right"}


@pytest.mark.slow
def test_it_is_found_too_where_what_follows_hides_it(examine) -> None:
    found = examine(chain(200, ["Softplus", "Relu", "Tanh"]), "fake:scale.n100=1.5,unless_marked=t101")
    assert all(output.passed for output in found.outputs) and found.is_masked
    (group,) = found.groups
    assert len(group.nodes) == 2 and 100 in group.nodes


@pytest.mark.slow
def test_the_real_bug_of_onnxruntime_is_located_to_its_six_layers(examine) -> None:
    skip_without_it()
    found = examine(demonstration_model(), "onnxrt", judge=Judge(Tolerances({"": 1e-3}, {"": 1e-3})))
    (group,) = found.groups
    assert [label.split()[0] for label in group.labels] == list(CULPRITS)
    assert all("adapter" in label for label in group.labels) and group.hides
    assert [one.change for one in found.marking_effects] == ["gone"]


def test_the_real_failure_of_openvino_is_located_to_its_two_layers(examine) -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Relu", ["x"], ["t0"], name="first")]
    nodes += [helper.make_node("Sigmoid", [f"t{i}"], [f"t{i + 1}"], name=f"s{i}") for i in range(20)]
    nodes += [
        helper.make_node("MatMul", ["t20", "w"], ["m"], name="matmul"),
        helper.make_node("PRelu", ["m", "slope"], ["p"], name="prelu"),
        helper.make_node("Abs", ["p"], ["y"], name="last"),
    ]
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 6)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.uniform(size=(3, 1, 1)).astype(np.float32), "slope"),
    ]
    made = model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], weights)
    found = examine(made, "openvino", judge=Judge(Tolerances({"": 1e-3}, {"": 1e-3})))
    if found.failure is None:
        pytest.skip("the installed OpenVINO compiles it")
    assert [group.labels for group in found.groups] == [("MatMul 'matmul'", "PRelu 'prelu'")]


def test_a_mark_hides_nothing_where_the_end_is_as_wrong_beside_an_infinity_of_the_other_sign(examine, planted) -> None:
    nodes = [helper.make_node(operator, [f"t{i}"], [f"t{i + 1}"]) for i, operator in enumerate(SIGNED)]
    made = model(nodes, [info("t0", [4, 8])], [info("t3", [4, 8])])
    negative = Inputs(given=[{"t0": np.full((4, 8), -1, np.float32)}])
    found = examine(made, planted({"op": "Relu", "does": "scale", "by": -1}), negative)  # a zero with a sign
    (group,) = found.groups
    assert group.nodes == (0, 1, 2) and group.hides is False
