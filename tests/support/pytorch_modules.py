"""Modules of PyTorch, and their exports, for the tests that are marked ``torch``. Imports PyTorch."""

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    """What ``torch.onnx.export`` gives, without its talk."""
    logging.disable(logging.WARNING)
    try:
        return torch.onnx.export(module.eval(), args, kwargs=kwargs, dynamo=True, verbose=False, **options)
    finally:
        logging.disable(logging.NOTSET)


class Mlp(nn.Module):
    """In-place operators, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            y = self.up(x)
            y.relu_()
            y += 1.0
            x = x + self.down(y)
        return x


class Encoder(nn.Module):
    """Attention, normalization and a convolution with statistics: what the exporter's optimizer fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Conv1d(8, 8, 3, padding=1)
        self.scale = nn.BatchNorm1d(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = self.norm(x + self.attention(x, x, x)[0])
        return functional.gelu(self.scale(self.mix(x.transpose(1, 2))))


class Nested(nn.Module):
    """Nested inputs and outputs, one of them None, sizes that are open, an input that is an output."""

    def forward(self, x: torch.Tensor, more: dict[str, Any], scale: torch.Tensor | None = None) -> Any:
        left, (right, _) = more["left"], more["right"]
        rows = x.shape[0]
        sum_of = x * rows + left @ right
        if scale is not None:
            sum_of = sum_of * scale
        return {"sum": sum_of.reshape(rows * 2, -1), "given": (left, sum_of.max(dim=1)), "rows": rows}


class ManyTypes(nn.Module):
    """Values of types that NumPy does not have, and of several outputs."""

    def forward(self, x: torch.Tensor) -> Any:
        half = x.to(torch.bfloat16)
        top = torch.topk(x, 2)
        return half.sum(), x.to(torch.float8_e4m3fn).float(), top.values, top.indices > 0, torch.fft.rfft(x).abs()


class Branches(nn.Module):
    """A branch that the values decide, around a value of the main graph on each side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        taken = torch.cond(doubled.sum() > 0, lambda t: torch.sin(t) + 1, lambda t: torch.cos(t) - 1, (doubled,))
        return taken * 3


class Counting(nn.Module):
    """A buffer that every call changes."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Parts(nn.Module):
    """Parts that a hook can tell the value of, and parts of every kind whose value it cannot."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.act, self.drop = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.act(self.q(x))) + x

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)
        self.blocks = nn.ModuleList([self.Block(), self.Block()])
        self.twice, self.states = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        with torch.no_grad():
            self.norm.running_mean += 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        for block in self.blocks:
            x = block(x)
        x, _ = self.states(self.twice(self.twice(x)))
        return self.tail(x) * 2


class PartInBranch(nn.Module):
    """A part that only a branch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inside = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return torch.cond(x.sum() > 0, self.inside, lambda t: t - 1, (x,))
