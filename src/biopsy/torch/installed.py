"""PyTorch, imported here and nowhere else, when something is called that needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from biopsy import errors


def imported(name: str = "torch") -> Any:
    """PyTorch, or a module of it, such as ``torch.fx``. Raises EngineMissing if it is not installed or does not work.

    Its types are not known to us: who type-checks biopsy need not have half a gigabyte of it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != "torch":
            why = f"PyTorch does not work here: {error}"
        else:
            why = "biopsy.torch needs PyTorch, which is not installed"
        raise errors.EngineMissing(why, next_steps=['pip install "biopsy[torch]"', "or see: biopsy doctor"]) from error
