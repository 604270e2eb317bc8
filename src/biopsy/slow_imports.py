"""onnx and numpy, imported when one of their names is first used.

Importing them takes several times as long as the rest of a command that may not need them, such as ``--help`` or the
parent of a reduction. A module that always needs them imports them as usual.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["np", "onnx"]


class _Package:
    """Stands for a package; takes over each of its names that is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__dict__["_name"]), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
    import onnx
else:
    np, onnx = _Package("numpy"), _Package("onnx")
