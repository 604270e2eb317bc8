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
