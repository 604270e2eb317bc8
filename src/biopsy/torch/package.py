"""PyTorch itself, imported when it is asked for: nothing else in biopsy needs it."""

from __future__ import annotations

from typing import Any

from biopsy import errors

_INSTALL = 'pip install "biopsy[torch]"'


def torch_package() -> Any:
    """The package ``torch``, with its exporter to ONNX. Raises EngineMissing where one of them cannot be imported."""
    try:
        import onnxscript  # noqa: F401: torch.onnx needs it, and says so late
        import torch
        import torch.export
        import torch.onnx
    except ImportError as error:
        raise errors.EngineMissing(
            f"PyTorch, or what its exporter needs, cannot be imported: {error}", next_steps=[_INSTALL]
        ) from error
    return torch


def versions() -> dict[str, str]:
    """The versions of what captures and translates a module, by the names of the packages."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "onnxscript", "onnx")}
