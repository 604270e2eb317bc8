"""What a diagnosis of large weights costs: how often the module is exported, and what is written."""

from functools import wraps
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import biopsy.torch  # noqa: E402
from biopsy.torch import exporting, noise  # noqa: E402
from biopsy.torch.recording import flat_inputs  # noqa: E402

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


class Products(torch.nn.Module):
    """A large matrix in each kind of product, as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Linear(1024, 1280)
        self.register_buffer("shift", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat, weight = x[0], self.part.weight
        rows = flat @ weight.t(), torch.mm(flat, weight.t()), torch.addmm(self.part.bias, flat, weight.t())
        scaled = torch.addmm(self.part.bias, flat, weight.t(), beta=0.5, alpha=3.0)
        rows = *rows, scaled, torch.addmm(self.shift, flat, weight.t())
        return self.part(x), torch.nn.functional.linear(flat, weight), torch.matmul(x, weight.mT), *rows


@pytest.mark.parametrize("seed", [None, 1])
def test_a_large_matrix_is_widened_in_parts_and_gives_the_same_values(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = Products().eval(), torch.randn(2, 3, 1024)
    program = torch.export.export(module, (x,))
    inputs, sizes, whole = flat_inputs(program, (x,), {}), [], noise.wide
    monkeypatch.setattr(noise, "_AT_ONCE", 100_000)
    monkeypatch.setattr(noise, "wide", lambda value: (sizes.append(getattr(value, "numel", int)()), whole(value))[1])
    *_, (_, values) = noise.values_in_float64(program, inputs, seed)
    expected = Products().double().eval()
    expected.load_state_dict(module.state_dict())
    tolerance = 1e-12 if seed is None else 1e-5
    for value, right in zip(values, expected(x.double()), strict=True):
        torch.testing.assert_close(value, right, rtol=tolerance, atol=tolerance)
    assert max(sizes) <= 100_000
