"""Isolated layers: what each introduces when it is run by itself, fed with recorded values."""

import re

import numpy as np
import pytest
from onnx import helper

from biopsy.comparison.tolerance import Stats, Tolerances
from biopsy.engines.runner import Inputs
from biopsy.questions.layers.question import Judge
from support.examinations import growing, labels, verdicts
from support.models import chain, info, model, weight


def test_the_errors_are_what_numpy_says(examine) -> None:
    value = np.array([[1, 2], [3, 4]], np.float32)
    found = examine(growing(3), "fake:scale.n0=1.5,offset.n1=1", Inputs(given=[{"t0": value}]))
    first, second, third = found.layers
    assert first.introduced is not None and second.introduced is not None and second.propagated is not None
    assert (first.introduced.absolute, first.introduced.relative) == (2.0, 0.5)
    assert first.introduced.tolerance_ratio == pytest.approx((0.5 * value / (1e-5 + 1e-5 * value)).max(), rel=1e-5)
    assert first.introduced.worst is not None and first.introduced.worst.index == (1, 1)
    assert second.introduced.absolute == 1.0
    assert second.propagated.absolute == np.abs((1 - 1.5 * value) + value).max()
    assert third.introduced is not None and third.introduced.absolute == 0.0


def test_layers_that_the_engine_refuses_are_all_named(examine) -> None:
    found = examine(chain(12, ["Relu", "Abs", "Neg"]), "fake:refuse.Abs=build")
    assert [label.split()[0] for label in labels(found)] == ["Abs"] * 4


@pytest.mark.slow
def test_a_layer_that_kills_the_engine_is_named_and_the_others_are_measured(examine) -> None:
    found = examine(growing(40), "fake:crash.n7=run")
    assert labels(found) == ["Neg 'n7'"] and found.suspects[0].failure is not None
    assert (found.suspects[0].failure.kind, found.failure and found.failure.kind) == ("SIGSEGV", "SIGSEGV")
    assert list(verdicts(found).values()).count("right") == 39


@pytest.mark.slow
def test_the_sample_counts_in_which_a_tensor_is_farthest_off(examine) -> None:
    feeds = [{"t0": np.full((2, 2), value, np.float32)} for value in (1, 3, 2)]
    found = examine(growing(2), "fake:offset.n1=0,scale.n1=2", Inputs(given=feeds))
    assert found.layers[1].introduced is not None
    assert (found.layers[1].introduced.sample, found.layers[1].introduced.absolute) == (1, 3.0)


@pytest.mark.slow
def test_layers_that_hand_on_sequences_are_run_with_those_that_need_them(examine) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["q"], axis=0, name="split"),
        helper.make_node("SequenceAt", ["q", "one"], ["a"], name="at"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    made = model(nodes, [info("x", (2, 3))], [info("y", None)], [weight("one", 1, dtype="int64", shape=())])
    found = examine(made, "fake:scale.at=1.5")
    assert labels(found) == ["SplitToSequence 'split' SequenceAt 'at'"]
    assert verdicts(found)["split"] == "unknown"
    assert (found.layers[0].within, found.layers[0].note) == (
        (1,),
        "its outputs have no recorded value: measured as one piece with SequenceAt 'at'",
    )


@pytest.mark.slow
def test_tolerances_and_statistics_by_name_decide(examine) -> None:
    suspect = "fake:scale.n1=1.5,scale.n2=1.5"
    loose = Judge(Tolerances({"t2": 10.0}, {}))
    assert labels(examine(growing(3), suspect, judge=loose)) == ["Neg 'n2'"]
    mean = Judge(Tolerances({"": 0.6}, {"": 0.0}), Stats({"": "mean"}))
    assert examine(growing(3), suspect, judge=mean, nodes=re.compile("n1")).suspects == []
