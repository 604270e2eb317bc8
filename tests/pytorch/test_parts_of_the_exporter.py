"""What of the exporter is to blame, with faults planted in it; and what nobody can tell."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy.comparison.mismatch import Mismatch, Rounding  # noqa: E402
from biopsy.questions.layers.question import Judge  # noqa: E402
from biopsy.torch.calls import Arguments  # noqa: E402
from biopsy.torch.evaluation import (  # noqa: E402  # noqa: E402
    Evaluation,
    Evaluators,
    ModuleDifference,
    OnnxModel,
    Sample,
    TimeLeft,
    accusation_of,
)
from support.pytorch_faults import Mlp  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.linspace(-2, 2, 24).reshape(3, 8)


def test_an_optimizer_that_breaks_the_model_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = torch.onnx.ONNXProgram.optimize

    def breaking(self: Any) -> None:
        optimize(self)
        for node in self.model.graph:
            node.op_type = {"Gelu": "Softplus"}.get(node.op_type, node.op_type)
            node.attributes.clear() if node.op_type == "Softplus" else None

    monkeypatch.setattr(torch.onnx.ONNXProgram, "optimize", breaking)
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "optimizer")
    assert found.places[0].operators == ("aten.gelu.default",)


def test_operators_made_of_others_that_give_something_else_are_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter import _decomp

    table = _decomp.create_onnx_friendly_decomposition_table

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return {**table(*args, **kwargs), torch.ops.aten.gelu.default: lambda x, approximate="none": torch.tanh(x)}

    monkeypatch.setattr(_decomp, "create_onnx_friendly_decomposition_table", wrong)
    found = biopsy.torch.diagnose(Mlp().eval(), (X,))
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "decomposition")
    assert found.places[0].code == "hidden = functional.gelu(hidden)"
    assert found.places[0].operators == ("aten.gelu.default",)


def test_rounding_that_nobody_can_tell_from_a_fault_blames_nobody(tmp_path: Path) -> None:
    asked = Judge()
    sample = Sample(given=Arguments(args=(X,)), expected=[])
    model = OnnxModel(path=tmp_path / "no.onnx", feeds=tmp_path / "no", expected={}, program=None, sample=sample)
    suspected = Evaluation(
        engine="onnxrt",
        difference=ModuleDifference(mismatches=(Mismatch(output="y", kind="mismatch", error=2e-5),)),
        rounding=Rounding("unknown", reason="float64 overflows"),
    )
    with Evaluators(asked, tmp_path, None, TimeLeft(None)) as engines:
        found = accusation_of(engines, suspected, model, None)
    assert (found.blame, found.reason) == (
        "unknown",
        "rounding cannot be told from a fault: float64 overflows",
    )
