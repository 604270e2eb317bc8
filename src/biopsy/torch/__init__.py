"""From a PyTorch module to the guilty line of Python: what runs in the process that has the module.

Names are loaded when first used; PyTorch itself when something is asked of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biopsy.torch.asking import diagnose as diagnose
    from biopsy.torch.facts import TorchDiagnosis as TorchDiagnosis

_HOMES = {"diagnose": "biopsy.torch.asking", "TorchDiagnosis": "biopsy.torch.facts"}

__all__ = ["TorchDiagnosis", "diagnose"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'biopsy.torch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
