"""Tensors of the whole model marked as outputs: propagated errors, and what marking changes."""

import numpy as np
import pytest
from onnx import helper

from biopsy import events
from biopsy.engines.base import Capabilities
from biopsy.engines.registry import find_class
from biopsy.engines.runner import Inputs
from support.examinations import growing, labels, verdicts
from support.models import INT64, info, model, weight


@pytest.mark.slow
def test_both_introducers_of_300_layers_are_named_the_worst_first_and_none_after_them_is_accused(examine) -> None:
    found = examine(growing(300), "fake:scale.n100=1.01,scale.n200=1.5")
    assert labels(found) == ["Neg 'n200'", "Neg 'n100'"]
    assert found.first_wrong is not None and found.first_wrong[0].name == "n100"
    told = verdicts(found)
    assert [name for name, verdict in told.items() if verdict == "introduces"] == ["n100", "n200"]
    assert {told[f"n{number}"] for number in range(100)} == {"right"}
    assert {told[f"n{number}"] for number in range(101, 300)} == {"propagates", "introduces"}
    assert not found.passed and not found.groups and not found.is_masked


@pytest.mark.slow
def test_an_error_that_a_softmax_or_an_argmax_hides_is_not_missed(examine) -> None:
    for last, elem in (("Softmax", 1), ("ArgMax", INT64)):
        nodes = [
            helper.make_node("Mul", ["x", "big"], ["a"], name="mul"),
            helper.make_node("Exp", ["a"], ["b"], name="exp"),
            helper.make_node(last, ["b"], ["y"], name="last", axis=-1),
        ]
        made = model(nodes, [info("x")], [info("y", None, elem)], [weight("big", 100, 1, dtype="float32")])
        found = examine(
            made, "fake:scale.exp=1.5", Inputs(given=[{"x": np.array([[0.1, 0.5], [0.2, 0.3]], np.float32)}])
        )
        assert all(output.passed for output in found.outputs)
        assert labels(found) == ["Exp 'exp'"] and found.is_masked and not found.passed


def test_an_engine_that_gives_no_inner_tensors_is_examined_layer_by_layer(examine, monkeypatch) -> None:
    monkeypatch.setattr(find_class("fake"), "capabilities", Capabilities(marks_any_tensor=False))
    found = examine(growing(12), "fake:scale.n3=2")
    assert labels(found) == ["Relu 'n3'"] and all(layer.propagated is None for layer in found.layers)


@pytest.mark.slow
def test_batches_give_the_same_findings_as_one_run(examine) -> None:
    suspect = "fake:scale.n100=1.01,scale.n200=1.5"
    told: list[events.Event] = []
    at_once, in_batches = (
        examine(growing(300), suspect, limit=limit, listener=listener)
        for limit, listener in ((10**9, events.ignore), (480, told.append))
    )
    assert labels(at_once) == labels(in_batches) and verdicts(at_once) == verdicts(in_batches)
    batches = {event.stage: event.total for event in told if isinstance(event, events.Measured)}
    assert batches["record"] >= 10 and batches["whole"] >= 10
