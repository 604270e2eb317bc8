"""From a PyTorch module to the guilty line of Python.

Names are loaded when they are first used, and PyTorch when a function is called: ``import biopsy.torch`` loads neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biopsy.torch.diagnosing import diagnose as diagnose
    from biopsy.torch.facts import TorchDiagnosis as TorchDiagnosis
    from biopsy.torch.hooks import record_hooks as record_hooks
    from biopsy.torch.recording import TorchRecording as TorchRecording
    from biopsy.torch.recording import record as record

_HOMES = {
    "biopsy.torch.diagnosing": ("diagnose",),
    "biopsy.torch.facts": ("TorchDiagnosis",),
    "biopsy.torch.hooks": ("record_hooks",),
    "biopsy.torch.recording": ("TorchRecording", "record"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - one list of the public names is enough


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
