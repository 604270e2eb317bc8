"""What leads astray: a comparison that is too strict, so that rounding fails it too, everywhere in the model.

A reduction that takes any failure of the comparison for the failure ends at the first convolution that sums in another
order, and not at the layer that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from biopsy import events
from biopsy.cli.app import main
from biopsy.cli.demo import CULPRITS, demonstration_model
from support.bug import skip_without_it

CHANNELS = 16
STRICT = ("--atol", "1e-9", "--rtol", "0")
"""Tolerances that ONNX Runtime's own optimizer does not keep: it convolves in another order."""

PLANTED = "fake:scale.activation6=1.01"
"""A wrong layer in the midst of right ones that round otherwise."""


def convolutions(path: Path, activation: str = "Relu", domain: str = "", last: Sequence[str] = ()) -> Path:
    """Twelve convolutions, each with an activation; LeakyRelu after the seventh. Real rounding: onnxrt against fake."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for number in range(12):
        weight = rng.normal(size=(CHANNELS, CHANNELS, 3, 3)) / np.sqrt(CHANNELS * 9)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{number}"))
        bias = rng.normal(size=CHANNELS).astype(np.float32)
        weights.append(numpy_helper.from_array(bias, f"bias{number}"))
        names = f"convolution{number}", f"activation{number}"
        inputs = [before, f"weight{number}", f"bias{number}"]
        nodes.append(helper.make_node("Conv", inputs, names[:1], names[0], pads=[1, 1, 1, 1]))
        kind = ("LeakyRelu", "") if number == 6 else (activation, domain)
        nodes.append(helper.make_node(kind[0], names[:1], names[1:], names[1], domain=kind[1]))
        before = names[1]
    for operator in last:
        nodes.append(helper.make_node(operator, [before], [f"{before}_"], operator))
        before += "_"
    shape = [1, CHANNELS, 8, 8]
    x = helper.make_tensor_value_info("x", 1, shape)
    y = helper.make_tensor_value_info(before, 1, shape)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "convolutions", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolutions(tmp_path_factory.mktemp("rounding") / "model.onnx")


def names(path: Path) -> list[str]:
    return [node.name for node in onnx.load(path).graph.node]


def remarks(heard: list[events.Event]) -> str:
    return "\n".join(event.text for event in heard if isinstance(event, events.Remark))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bisect", "minimal"])
def test_the_layer_that_is_wrong_is_found_among_layers_that_round_otherwise(
    model: Path, tmp_path: Path, mode: str
) -> None:
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", PLANTED, *STRICT]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", mode=mode)  # type: ignore[arg-type]
    assert names(tmp_path / "r.onnx") == ["activation6"]
    assert any("only rounding" in reason for reason in found.other_failures)


def test_cold_processes_and_several_at_once_find_the_same(model: Path, tmp_path: Path) -> None:
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", PLANTED, *STRICT]
    biopsy.reduce(model, check, tmp_path / "r.onnx", mode="bisect", jobs=3)
    assert names(tmp_path / "r.onnx") == ["activation6"]


@pytest.mark.slow
def test_the_layer_that_is_wrong_is_found_with_golden_values_too(model: Path, tmp_path: Path) -> None:
    golden, inputs, every = (tmp_path / f"{name}.json" for name in ("golden", "inputs", "every"))
    saving = ["--save-inputs", str(inputs), "--onnx-outputs", "mark", "all", "--save-outputs", str(golden)]
    assert main(["run", str(model), "--onnxrt", *saving]) == 0
    assert main(["data", "to-input", str(inputs), str(golden), "-o", str(every)]) == 0
    loaded = ["--load-inputs", str(every), "--load-outputs", str(golden)]
    biopsy.reduce(
        model, ["biopsy", "run", "{}", "--engine", PLANTED, *loaded, *STRICT], tmp_path / "r.onnx", inputs=None
    )
    assert names(tmp_path / "r.onnx") == ["activation6"]


@pytest.mark.slow
def test_the_error_of_the_original_and_of_the_result_are_told(model: Path, tmp_path: Path) -> None:
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", PLANTED, *STRICT]
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", mode="bisect")
    assert found.error_before is not None
    assert found.error_after is not None
    assert found.error_after.worst.output == "activation6"
    for size in (found.error_before, found.error_after):
        assert size.worst.times_tolerance is not None
        assert size.worst.times_tolerance > 1e4
        assert size.worst.times_rounding is not None
        assert size.worst.times_rounding > 1e3


def test_an_original_that_only_rounds_is_told_as_that_with_the_tolerance_that_passes(
    model: Path, tmp_path: Path
) -> None:
    heard: list[events.Event] = []
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", "fake", *STRICT]
    biopsy.reduce(model, check, tmp_path / "r.onnx", mode="bisect", listener=heard.append)
    assert (tmp_path / "r.onnx").exists(), "it goes on"
    told = remarks(heard)
    assert "the original's error is only rounding" in told
    passing = told.partition("--atol ")[2].split()[0]
    assert main(["run", str(model), "--onnxrt", "--engine", "fake", "--rtol", "0", "--atol", passing]) == 0


@pytest.mark.slow
def test_two_engines_that_are_wrong_alike_differ_by_rounding(model: Path, tmp_path: Path) -> None:
    heard: list[events.Event] = []
    check = ["biopsy", "run", "{}", "--engine", PLANTED, "--engine", f"{PLANTED},noise.convolution2=1e-7", *STRICT]
    biopsy.reduce(model, check, tmp_path / "r.onnx", mode="bisect", listener=heard.append)
    assert "both sides are wrong by more than that, in the same way" in remarks(heard)


@pytest.mark.slow
def test_where_float64_cannot_run_that_is_said_and_sizes_decide(tmp_path: Path) -> None:
    model = convolutions(tmp_path / "model.onnx", "Trilu", "com.microsoft")
    heard: list[events.Event] = []
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", "fake:scale.activation6=1.5", *STRICT]
    biopsy.reduce(model, check, tmp_path / "r.onnx", mode="bisect", listener=heard.append)
    assert names(tmp_path / "r.onnx") == ["activation6"]
    assert "float64 could not judge; error sizes decide" in remarks(heard)


@pytest.mark.slow
def test_a_failure_that_is_rounding_for_nobody_costs_no_further_check(model: Path, tmp_path: Path) -> None:
    lenient = ["biopsy", "run", "{}", "--onnxrt", "--engine", "fake:scale.activation6=2", "--atol", "1e-2"]
    heard: list[events.Event] = []
    biopsy.reduce(model, lenient, tmp_path / "r.onnx", mode="bisect", listener=heard.append)
    assert names(tmp_path / "r.onnx") == ["activation6"]
    asked = [event for event in heard if isinstance(event, events.Checking) and event.stage == "rounding"]
    assert asked == []


@pytest.mark.slow
def test_a_reduction_that_was_stopped_goes_on_from_the_same_size(model: Path, tmp_path: Path) -> None:
    check = ["biopsy", "run", "{}", "--onnxrt", "--engine", PLANTED, *STRICT]
    settings = {"mode": "bisect", "journal": tmp_path / "journal"}
    stopped = biopsy.reduce(model, check, tmp_path / "r.onnx", max_checks=6, **settings)  # type: ignore[arg-type]
    assert stopped.stopped is not None
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", **settings)  # type: ignore[arg-type]
    assert found.remembered > 0
    assert found.error_before == stopped.error_before
    assert names(tmp_path / "r.onnx") == ["activation6"]


@pytest.mark.slow
def test_a_real_wrong_fusion_is_found_with_no_tolerance_at_all(tmp_path: Path) -> None:
    skip_without_it()
    (tmp_path / "model.onnx").write_bytes(demonstration_model().SerializeToString(deterministic=True))
    exactly = ["--engine", "onnxrt:optimization=none", "--onnxrt", "--atol", "0", "--rtol", "0"]
    biopsy.reduce(tmp_path / "model.onnx", ["biopsy", "run", "{}", *exactly], tmp_path / "r.onnx")
    found = onnx.load(tmp_path / "r.onnx").graph.node
    assert tuple(node.op_type for node in found) == CULPRITS
    assert all("adapter" in node.name for node in found), "and not a normalization that is fused rightly"


@pytest.mark.slow
def test_two_real_engines_with_the_same_wrong_fusion_are_told_as_that(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    skip_without_it()
    (tmp_path / "model.onnx").write_bytes(demonstration_model().SerializeToString(deterministic=True))
    heard: list[events.Event] = []
    check = ["biopsy", "run", "{}", "--openvino", "--onnxrt", "--atol", "1e-7", "--rtol", "1e-7"]
    biopsy.reduce(tmp_path / "model.onnx", check, tmp_path / "r.onnx", mode="bisect", listener=heard.append)
    assert "the original's error is only rounding" in remarks(heard)
    assert "in the same way" in remarks(heard)
