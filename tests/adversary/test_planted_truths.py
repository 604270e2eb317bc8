"""What a diagnosis says of bugs that are planted in an engine, held against what was planted."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from support.command_line import BIN
from support.planting import planted as planted

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[4,8] x) => (float[4,8] y)
{
    [product] a = MatMul (x, w1)
    [sum] b = Add (a, b1)
    [rectifier] c = Relu (b)
    [tanh] f = Tanh (c)
    [softmax] s = Softmax <axis = -1> (f)
    [scale] m = Mul (s, k)
    [difference] y = Sub (m, f)
}
"""


class Said(NamedTuple):
    """The status of a diagnosis, the kind of its verdict and its text."""

    status: int
    kind: str
    text: str


@pytest.fixture
def diagnosed(tmp_path: Path, planted: Callable[..., str]) -> Callable[..., Said]:
    """Diagnoses the model in the engine with planted rules, beside the reference evaluator."""
    model, random = onnx.parser.parse_model(MODEL), np.random.default_rng(0)
    for name, shape in {"w1": (8, 8), "b1": (8,), "k": (8,)}.items():
        values = random.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "model.onnx")

    def diagnose(*rules: Mapping[str, Any]) -> Said:
        words = [BIN / "biopsy", "diagnose", "model.onnx", "--reference", "--engine", planted(*rules)]
        ran = subprocess.run([*words, "--report", "report.json"], cwd=tmp_path, capture_output=True, text=True)
        verdict = json.loads((tmp_path / "report.json").read_text())["verdict"]
        return Said(ran.returncode, verdict["kind"], verdict["text"])

    return diagnose


@pytest.mark.slow
def test_a_node_that_is_wrong_only_as_an_output_is_no_failure_of_the_model(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": True})
    assert (said.status, said.kind) == (0, "passes")
    assert "computes Tanh 'tanh' wrongly only if it is an output of the model" in said.text


@pytest.mark.slow
def test_a_wrong_copy_of_an_inner_tensor_is_no_failure_of_the_model(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "copy": True})
    assert (said.status, said.kind) == (0, "passes")
    assert "computes Tanh 'tanh' wrongly only if it is an output of the model" in said.text


@pytest.mark.slow
def test_a_wrong_copy_of_an_output_is_a_failure(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "difference", "does": "scale", "copy": True})
    assert (said.status, said.kind) == (1, "reduced")
    assert "Sub 'difference'" in said.text


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_nothing_mends_a_flaky_node_and_no_other_is_blamed(diagnosed: Callable[..., Said], share: float) -> None:
    said = diagnosed({"op": "Softmax", "does": "scale", "share": share})
    assert said.status == 1
    assert "Softmax 'softmax'" in said.text
    wrong = ("goes away", "opset", "rounding, and no bug", "MatMul", "Add", "Relu", "Mul", "Sub")
    assert not [words for words in wrong if words in said.text]


@pytest.mark.slow
def test_a_node_that_is_always_wrong_is_told_from_one_that_rounds_differently(diagnosed: Callable[..., Said]) -> None:
    varies = {"op": "Softmax", "does": "add", "by": 1e-7, "share": 0.5}
    said = diagnosed({"op": "Add", "does": "scale"}, varies)
    assert (said.status, said.kind) == (1, "reduced")
    assert "one node, Add 'sum'" in said.text
    assert "deterministic" not in said.text


@pytest.mark.slow
def test_an_engine_that_contradicts_itself_in_any_model_is_the_headline(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "any", "does": "scale", "share": 0.5})
    assert (said.status, said.kind) == (1, "flaky")
    assert said.text.startswith("Not deterministic: the engine 'planted'")


@pytest.mark.slow
def test_nodes_that_fail_only_while_nothing_marks_them_are_no_proof_of_a_fusion(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": False})
    assert (said.status, said.kind) == (1, "reduced")
    assert "marking the tensors between them as outputs prevents it" in said.text
    assert "fusion" not in said.text
