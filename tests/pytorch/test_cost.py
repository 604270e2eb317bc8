"""What a diagnosis of large weights costs: how often the module is exported, and what is written."""

from functools import wraps
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy.torch import exporting  # noqa: E402

pytestmark = pytest.mark.torch


class Wide(torch.nn.Module):
    """Weights of 5 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Linear(1024, 1280)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.part(x))


def wrong_linear(x, weight, bias=None):
    """A wrong translation of the operator that has the weights: the smallest failing part needs them, too."""
    from onnxscript import opset18

    return opset18.Sub(opset18.MatMul(x, opset18.Transpose(weight, perm=[1, 0])), bias)


def test_weights_are_written_once_and_once_to_send_and_the_module_is_captured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(owner: str, export: Any) -> Any:
        @wraps(export)
        def counting(*args: Any, **kwargs: Any) -> Any:
            calls.append(owner)
            return export(*args, **kwargs)

        return counting

    for owner in (torch.export, torch.onnx):
        monkeypatch.setattr(owner, "export", counted(owner.__name__, owner.export))
    monkeypatch.setattr(exporting, "_MOST_INSIDE", 1 << 20)
    module = Wide().eval()
    size = sum(parameter.nbytes for parameter in module.parameters())
    export = {"custom_translation_table": {torch.ops.aten.linear.default: wrong_linear}}
    found = biopsy.torch.diagnose(module, (torch.ones(1, 1024),), export=export, output=tmp_path / "found")
    assert (found.verdict.blame, found.verdict.part) == ("exporter", "translation")
    assert (calls.count("torch.export"), calls.count("torch.onnx")) == (1, 2)
    files = [path for path in (tmp_path / "found").rglob("*") if path.is_file()]
    large = sorted(str(path.relative_to(tmp_path / "found")) for path in files if path.stat().st_size > size / 2)
    assert large == ["bundle/model.onnx", "model.onnx.data"]  # the folder to send stands alone
    assert sum(path.stat().st_size for path in files) < 2.1 * size
    assert "piece.onnx" in {path.name for path in files}
