"""Modules of which it is known who is at fault: nobody, since they only amplify rounding or have ties; or somebody,
since a fault is planted in the exporter or known in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from support.pytorch_faults import NormalizationOfColumns

Forward = Callable[..., Any]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A module, its arguments, how it is exported, and the verdict on it: the blame and the part of the exporter.

    ``operators`` are those at fault, each named in one of the places or in those of a further fault.
    """

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    blame: str = "passes"
    part: str | None = None
    operators: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    decomposition: Mapping[Any, Forward] = field(default_factory=dict)


def _random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _of(function: Forward, *args: torch.Tensor) -> Any:
    return {"make": lambda: Function(function), "args": lambda: args}


def _layers(count: int, width: int, gain: float, *, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    parts = []
    for number in range(count):
        linear = nn.Linear(width, width)
        linear.weight.data = _random(width, width, seed=number + 1) * gain / math.sqrt(width)
        linear.bias.data = torch.zeros(width)
        parts += [linear, nn.Tanh()]
    return nn.Sequential(*parts).to(dtype)


class Pyramid(nn.Module):
    """Convolutions at falling sizes, whose results are summed at rising sizes: healthy, and deep enough to round."""

    def __init__(self, width: int = 16, blocks: int = 8) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                    nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
                )
                for _ in range(blocks)
            )  # fmt: skip
            self.sides = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(blocks // 2))
            self.smooth = nn.Conv2d(width, width, 3, 1, 1)
            for part in self.modules():
                if isinstance(part, nn.BatchNorm2d):
                    nn.init.uniform_(part.weight, 0.5, 1.5)
                    nn.init.normal_(part.running_mean)
                    nn.init.uniform_(part.running_var, 0.5, 2.0)
                if isinstance(part, nn.Conv2d):
                    nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = functional.relu(self.stem(image))
        levels = []
        for number, block in enumerate(self.blocks):
            x = functional.relu(x + block(x))
            if number % 2:
                levels.append(self.sides[number // 2](x))
                x = functional.max_pool2d(x, 2)
        merged = levels.pop()
        for level in reversed(levels):
            merged = level + functional.interpolate(merged, size=level.shape[-2:], mode="nearest")
        return {"features": self.smooth(merged), "pooled": merged.mean((-2, -1))}


def _mean_of_squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


def _normal_logarithm(x: torch.Tensor) -> torch.Tensor:
    return (torch.log(1 + x) - x) / (x * x)


def _share_of_sum(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return x / centred.sum(-1, keepdim=True)


def _steps(x: torch.Tensor) -> torch.Tensor:
    return torch.floor(x.softmax(-1).cumsum(-1) * 8)


def _first_of_equal(x: torch.Tensor) -> torch.Tensor:
    return torch.gather(torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape), 1, x.topk(2, dim=1).indices)


_TIES = torch.tensor([[0.0, 1, 1, 0, 1, 1, 1, 0], [2, 2, 2, 2, 2, 2, 2, 2]])
_RELU_TIES = functional.relu(_random(4, 64, seed=9) - 1.5)


class Recurrent(nn.LSTM):
    """Two layers in both directions, with weights of their own."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            super().__init__(8, 16, 2, batch_first=True, bidirectional=True)


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.std(-1), x.logsumexp(-1), x.cumsum(-1), x.erf(), x.round(), x > 0.1, x.norm(), x.sqrt(), x.half().float()


CORRECT: Mapping[str, Planted] = {
    "layer norm of 1000": Planted(
        make=lambda: nn.LayerNorm(64), args=lambda: (1000 + 0.001 * _random(4, 64),)
    ),
    "mean of squares": Planted(**_of(_mean_of_squares, 100 + 0.01 * _random(8, 128))),
    "sums of centred values": Planted(
        **_of(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1), 10 * _random(16, 1000))
    ),
    "sin of exp": Planted(**_of(lambda x: torch.sin(torch.exp(x)), torch.linspace(0, 14, 96).reshape(4, 24))),
    "forty layers of tanh": Planted(make=lambda: _layers(40, 32, 2.5), args=lambda: (_random(4, 32),)),
    "logarithm without its first term": Planted(**_of(_normal_logarithm, _random(4, 32).abs() * 1e-4 + 1e-5)),
    "instance norm of constants": Planted(
        make=lambda: nn.InstanceNorm1d(3), args=lambda: (50 + 1e-4 * _random(2, 3, 40),)
    ),
    "sharp softmax": Planted(**_of(lambda x, y: torch.softmax(3000 * (x @ y), -1), _random(6, 32), _random(32, 6))),
    "share of a sum of nothing": Planted(**_of(_share_of_sum, _random(6, 200))),
    "reciprocal of no deviation": Planted(
        **_of(lambda x: torch.rsqrt(x.var(-1) + 1e-7), 300 + 1e-3 * _random(6, 64))
    ),
    "product less its transposed": Planted(
        **_of(lambda a, b: (a @ b) - (b.mT @ a.mT).mT.contiguous() + (a @ (b + 1) - a @ b - a.sum(-1, keepdim=True)),
              _random(16, 300), _random(300, 16))
    ),
    "cosine near zero": Planted(**_of(lambda x: (1 - torch.cos(x)) / (x * x), torch.linspace(1e-4, 1e-2, 64))),
    "steps": Planted(**_of(_steps, torch.zeros(3, 64) + 1e-7 * _random(3, 64))),
    "ties of topk": Planted(**_of(lambda x: x.topk(3, dim=1).indices, _TIES)),
    "ties of sort": Planted(**_of(lambda x: x.sort(dim=1).indices, _TIES)),
    "ties of argmax": Planted(**_of(lambda x: (x.softmax(1) * 3).argmax(1), _TIES)),
    "ties of topk, gathered": Planted(**_of(_first_of_equal, _TIES)),
    "ties of zeros": Planted(**_of(lambda x: functional.relu(x).topk(60, dim=1).indices, _RELU_TIES)),
    "recurrent": Planted(make=Recurrent, args=lambda: (_random(2, 7, 8),)),
    "statistics": Planted(**_of(_statistics, _random(3, 40))),
    "cubic interpolation": Planted(
        **_of(lambda x: functional.interpolate(x, scale_factor=1.7, mode="bicubic"), _random(1, 2, 9, 9))
    ),
    "fourier transform": Planted(**_of(lambda x: torch.view_as_real(torch.fft.rfft(x)), _random(3, 32))),
    "pyramid": Planted(make=Pyramid, args=lambda: (_random(1, 3, 64, 64),)),
    "forty layers of tanh in float16": Planted(
        make=lambda: _layers(40, 32, 1.5, dtype=torch.float16), args=lambda: (_random(4, 32, dtype=torch.float16),)
    ),
}  # fmt: skip
"""Nobody is at fault."""


def quick_gelu(x: Any, approximate: str = "none") -> Any:
    from onnxscript import opset18

    return opset18.Mul(x, opset18.Sigmoid(opset18.Mul(x, opset18.CastLike(opset18.Constant(value_float=1.702), x))))


def tanh_for_gelu(x: Any, approximate: str = "none") -> Any:
    from onnxscript import opset18

    return opset18.Tanh(x)


def softmax_of_first(x: Any, dim: int, half_to_float: bool = False) -> Any:
    from onnxscript import opset18

    return opset18.Softmax(x, axis=0)


def wide_epsilon(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Any:
    from onnxscript import opset18

    return opset18.LayerNormalization(x, weight, bias, axis=-1, epsilon=1e-3)[0]


def steep_leak(x: Any, negative_slope: float = 0.01) -> Any:
    from onnxscript import opset18

    return opset18.LeakyRelu(x, alpha=0.02)


def half_up(x: Any) -> Any:
    from onnxscript import opset18

    return opset18.Floor(opset18.Add(x, opset18.CastLike(opset18.Constant(value_float=0.5), x)))


def first_of_other_axis(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    from onnxscript import opset18

    return opset18.ArgMax(x, axis=0, keepdims=0)


def _translated(**translations: Forward) -> Mapping[str, Any]:
    table = {
        getattr(getattr(torch.ops.aten, name), _OVERLOAD.get(name, "default")): how
        for name, how in translations.items()
    }
    return {"export": {"custom_translation_table": table}}


_OVERLOAD = {"softmax": "int"}


class Words(nn.Module):
    """A transformer's feed-forward part and its head, which ends in probabilities."""

    def __init__(self, dtype: torch.dtype, *, softmax: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.norm, self.first, self.last = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
            self.head = nn.Linear(64, 100)
        self.softmax = softmax
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.last(functional.gelu(self.first(self.norm(x))))
        logits = self.head(x)
        return logits.softmax(-1) if self.softmax else logits


class ColumnsAndGelu(NormalizationOfColumns):
    """An operator before what ONNX Runtime fuses wrongly."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.gelu(x))


_GELU = ("aten.gelu.default",)


def _exporter(*operators: str, part: str = "translation", **planted: Any) -> Planted:
    return Planted(blame="exporter", part=part, operators=operators, **planted)


WRONG: Mapping[str, Planted] = {
    "quick gelu in float16, before a softmax": _exporter(
        *_GELU, make=lambda: Words(torch.float16), args=lambda: (_random(16, 64, dtype=torch.float16),),
        options=_translated(gelu=quick_gelu),
    ),
    "quick gelu": _exporter(
        *_GELU, make=lambda: Words(torch.float32), args=lambda: (_random(16, 64),), options=_translated(gelu=quick_gelu)
    ),
    "tanh for gelu after a norm of 1000": _exporter(
        *_GELU, **_of(lambda x: functional.gelu(functional.layer_norm(x, (64,))), 1000 + 0.001 * _random(4, 64)),
        options=_translated(gelu=tanh_for_gelu),
    ),
    "softmax of another axis": _exporter(
        "aten.softmax.int", **_of(lambda x: x.softmax(1), _random(5, 7)), options=_translated(softmax=softmax_of_first)
    ),
    "epsilon of a norm": _exporter(
        "aten.layer_norm.default", make=lambda: nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)),
        args=lambda: (_random(4, 32),), options=_translated(layer_norm=wide_epsilon),
    ),
    "epsilon of a norm, with one row of 1000": _exporter(
        "aten.layer_norm.default", make=lambda: nn.LayerNorm(64, elementwise_affine=True),
        args=lambda: (torch.cat([1000 + 0.001 * _random(1, 64), 0.05 * _random(7, 64, seed=1)]),),
        options=_translated(layer_norm=wide_epsilon),
    ),
    "slope of a leak": _exporter(
        "aten.leaky_relu.default", make=lambda: nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(), nn.Linear(32, 4)),
        args=lambda: (_random(4, 32),), options=_translated(leaky_relu=steep_leak),
    ),
    "halves rounded up": _exporter(
        "aten.round.default", **_of(lambda x: torch.round(x) * 2, torch.arange(16) / 2 + 0.0),
        options=_translated(round=half_up),
    ),
    "argmax of another axis": _exporter(
        "aten.argmax.default", **_of(lambda x: (x * 2).argmax(1), _random(8, 8)),
        options=_translated(argmax=first_of_other_axis),
    ),
    "gelu decomposed wrongly": _exporter(
        part="decomposition", make=lambda: Words(torch.float32, softmax=False), args=lambda: (_random(16, 64),),
        decomposition={torch.ops.aten.gelu.default: lambda x, approximate="none": torch.tanh(x)},
    ),
    "fusion of columns": Planted(
        make=NormalizationOfColumns, args=lambda: (_random(8, 8),), blame="engine",
        operators=("aten.pow.Tensor_Scalar",),
    ),
    "gelu and leak": _exporter(
        *_GELU, "aten.leaky_relu.default",
        **_of(lambda x: functional.leaky_relu(functional.gelu(x) - 0.5), _random(6, 32)),
        options=_translated(gelu=tanh_for_gelu, leaky_relu=steep_leak),
    ),
    "gelu decomposed wrongly, and a leak": _exporter(
        "aten.leaky_relu.default", part="decomposition",
        **_of(lambda x: functional.leaky_relu(functional.gelu(x) - 0.5), _random(6, 32)),
        options=_translated(leaky_relu=steep_leak),
        decomposition={torch.ops.aten.gelu.default: lambda x, approximate="none": torch.tanh(x)},
    ),
    "gelu and a fusion": _exporter(
        *_GELU, "aten.pow.Tensor_Scalar", make=ColumnsAndGelu, args=lambda: (_random(8, 8),),
        options=_translated(gelu=tanh_for_gelu),
    ),
}  # fmt: skip
"""The exporter or the engine is at fault."""


@contextmanager
def exporter_of(planted: Planted) -> Iterator[None]:
    """The exporter, with the decompositions of a planted fault."""
    from torch.onnx._internal.exporter import _decomp

    table = _decomp.create_onnx_friendly_decomposition_table
    if not planted.decomposition:
        yield
        return
    _decomp.create_onnx_friendly_decomposition_table = lambda *a, **k: {**table(*a, **k), **planted.decomposition}
    try:
        yield
    finally:
        _decomp.create_onnx_friendly_decomposition_table = table
