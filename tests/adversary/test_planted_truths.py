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

MATMULS = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[4,8] x) => (float[4,8] y)
{
    [first] a = MatMul (x, w1)
    [tanh1] b = Tanh (a)
    [second] c = MatMul (b, w1)
    [tanh2] d = Tanh (c)
    [third] e = MatMul (d, w1)
    [tanh3] f = Tanh (e)
    [fourth] g = MatMul (f, w1)
    [tanh4] h = Tanh (g)
    [fifth] y = MatMul (h, w1)
}
"""


class Said(NamedTuple):
    """The status of a diagnosis, the kind of its verdict and its text, what else fails, and the type of the error."""

    status: int
    kind: str
    text: str
    rest: Mapping[str, Any] | None
    narrower: Mapping[str, Any] | None

    @property
    def others(self) -> list[list[str]]:
        """The other parts that fail, by the labels of their nodes."""
        return [other["nodes"] for other in self.rest["others"]] if self.rest else []


@pytest.fixture
def diagnosed(tmp_path: Path, planted: Callable[..., str]) -> Callable[..., Said]:
    """Diagnoses the model in the engine with planted rules, beside the reference evaluator."""

    def diagnose(*rules: Mapping[str, Any], text: str = MODEL) -> Said:
        model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
        for name, shape in {"w1": (8, 8), "b1": (8,), "k": (8,)}.items():
            values = random.normal(0, 0.5, shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        onnx.save(model, tmp_path / "model.onnx")
        words = [BIN / "biopsy", "diagnose", "model.onnx", "--reference", "--engine", planted(*rules)]
        ran = subprocess.run([*words, "--report", "report.json"], cwd=tmp_path, capture_output=True, text=True)
        report = json.loads((tmp_path / "report.json").read_text())
        verdict = report["verdict"]
        return Said(ran.returncode, verdict["kind"], verdict["text"], report.get("rest"), report.get("narrower"))

    return diagnose


@pytest.mark.slow
def test_a_node_that_is_wrong_only_as_an_output_is_no_failure_of_the_model(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": True})
    assert (said.status, said.kind) == (0, "passes")
    assert "computes Tanh 'tanh' wrongly only if it is an output of the model" in said.text


@pytest.mark.slow
def test_nodes_that_fail_only_while_nothing_marks_them_are_no_proof_of_a_fusion(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": False})
    assert (said.status, said.kind) == (1, "reduced")
    assert "marking the tensors between them as outputs prevents it" in said.text
    assert "fusion" not in said.text


@pytest.mark.slow
def test_one_wrong_node_is_said_to_be_all_that_fails(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Softmax", "does": "scale"})
    assert said.rest is not None and (said.rest["answer"], said.others) == ("passes", [])
    assert "computed by the reference evaluator of onnx instead, the whole model passes" in said.text.lower()


@pytest.mark.slow
def test_one_of_five_wrong_nodes_is_not_said_to_be_all(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale"}, text=MATMULS)
    assert "one of at least 5 parts that fail in this way, each by itself (MatMul: 5 nodes)" in said.text
    assert said.rest is not None and said.rest["answer"] == "passes"


@pytest.mark.slow
def test_another_operator_that_is_wrong_too_is_named(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale"}, {"op": "Softmax", "does": "scale"})
    assert "(MatMul: 1 node; Softmax: 1 node)" in said.text or "(Softmax: 1 node; MatMul: 1 node)" in said.text
    assert said.rest is not None and (said.rest["answer"], len(said.others)) == ("passes", 1)


@pytest.mark.slow
def test_a_wrong_node_that_another_one_hides_is_named(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Add", "does": "scale"}, {"op": "Tanh", "does": "scale", "by": 0.0})
    assert "Add: 1 node" in said.text and "Tanh: 1 node" in said.text
    assert said.rest is not None and (said.rest["answer"], len(said.others)) == ("passes", 1)


@pytest.mark.slow
def test_every_node_that_cannot_be_built_is_counted(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "refuse build"}, text=MATMULS)
    assert "at least 5 parts" in said.text
    assert said.rest is not None and said.rest["answer"] == "passes"


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "types"), [("fp16", ["float16", "tf32"]), ("bf16", ["bfloat16"])])
def test_the_error_of_a_narrower_type_is_known(diagnosed: Callable[..., Said], rule: str, types: list[str]) -> None:
    said = diagnosed({"op": "MatMul", "does": rule})
    assert said.narrower is not None
    assert (said.narrower["types"], said.narrower["rounded"]) == (types, "results")
    assert f"The error is that of computing in {' or '.join(types)}" in said.text


@pytest.mark.slow
@pytest.mark.parametrize("by", [1 + 2.0**-11, 1 + 2.0**-8])
def test_another_error_of_that_size_is_not(diagnosed: Callable[..., Said], by: float) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale", "by": by})
    assert said.narrower is not None and said.narrower["types"] == []
    assert said.narrower["tried"] == 9
    assert "computing in" not in said.text
