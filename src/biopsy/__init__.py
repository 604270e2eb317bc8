"""biopsy: find the smallest piece of a failing ONNX model that still fails in the same way.

The public Python API. Everything else may change without notice. Names are loaded when first used, so that
``import biopsy`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biopsy.errors import BiopsyError as BiopsyError

_HOME_OF = {
    "BiopsyError": "biopsy.errors",
}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'biopsy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
