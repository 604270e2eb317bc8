"""Small modules of PyTorch, and what goes wrong with them."""

from __future__ import annotations

import torch
from torch.nn import functional


class Mlp(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = torch.nn.Linear(8, 16)
            self.last = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = functional.gelu(hidden)
        return self.last(hidden)


class ForgottenTraining(Mlp):
    """Dropout that does not ask whether the module is in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(self.first(x), 0.5)
        return self.last(hidden)


class BranchOnData(Mlp):
    """What torch.export does not capture."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first(x).sum() > 0:
            return x
        return -x


class NormalizationOfColumns(torch.nn.Module):
    """What ONNX Runtime 1.32 takes for layer normalization, although the mean is subtracted along the other axis."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.pow(2).mean(-1)
        return x / torch.sqrt(mean + 1e-5) * self.gain


class Nested(Mlp):
    """Nested arguments and outputs, an argument that is changed and given back, an output that is None."""

    def forward(self, x: torch.Tensor, *, pair: dict[str, torch.Tensor], scale: torch.Tensor | None = None) -> object:
        x.add_(1)
        shifted = x + pair["left"]
        top = functional.gelu(shifted).max(dim=1)
        return {"given": x, "top": [top, None], "positive": pair["right"] > 0}


class Attention(torch.nn.Module):
    """Attention with a mask, which may mask a row as a whole: PyTorch gives 0 there."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class Layers(torch.nn.Module):
    """A loop over parts of the module: one line, several parts."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.parts = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = functional.gelu(part(x))
        return x


class Branches(torch.nn.Module):
    """A branch that the values decide, with an operator of its own on each side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken = torch.cond(x.sum() > 0, lambda t: torch.sin(t) + 1, lambda t: functional.gelu(t) - 1, (x,))
        return taken * 3


class LeftOutInCapture(torch.nn.Module):
    """What is captured is not what runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 if torch.compiler.is_compiling() else 2.0)


class Counting(torch.nn.Module):
    """A module with a state of its own: a buffer, an attribute, statistics of a part that is in training mode."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.last: torch.Tensor | None = None
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(x) * self.calls


class Largest(torch.nn.Module):
    """Places of the largest values, of which several are equal."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.topk(2)
        return found.values, found.indices


class RoundedIntegers(torch.nn.Module):
    """What the exporter makes an invalid model of: ONNX rounds no integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x) + 1


class Deep(torch.nn.Module):
    """Layers enough for rounding to show."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            parts = [
                torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)) for _ in range(8)
            ]
        self.parts = torch.nn.Sequential(*parts).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


@torch.library.custom_op("biopsy_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
    """An operator of the user's own."""
    return x + by


@shifted.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


class OwnOperator(Mlp):
    """An operator of the user's own between two layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = shifted(self.first(x), 1.0)
        return self.last(hidden)
