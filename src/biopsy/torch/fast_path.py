"""The fast path of PyTorch's attention, which only an eager module takes in evaluation mode.

``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` then compute in one operator, and give 0 where a
padding mask hides a word. ``torch.export`` captures the slow path, which gives something else there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from biopsy.torch.facts import ModuleLine
from biopsy.torch.installed import imported

FAST_PATH = (
    "after torch.backends.mha.set_fastpath_enabled(False) the module gives what the program gives. "
    "(The fast path gives 0 for words that a padding mask hides.)"
)
"""What there is to say where the module without it gives what was captured."""


def fast_part(module: Any) -> ModuleLine | None:
    """The outermost part of a module that may take the fast path, if it has one; the module itself has no name."""
    nn = imported("torch.nn")
    kinds = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            return ModuleLine(module=name or None, operators=(f"torch.nn.{type(part).__name__}",))
    return None


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Attention takes the path that ``torch.export`` captures."""
    attention = imported("torch.backends.mha")
    before = attention.get_fastpath_enabled()
    attention.set_fastpath_enabled(False)
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)
