"""Functions that modules of another file call."""

from __future__ import annotations

from collections.abc import Callable

import torch


def applied_below(operator: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Twice the operator's result."""
    return applied(operator, x - 1) * 2


def applied(operator: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The operator's result."""
    return operator(x)  # here
