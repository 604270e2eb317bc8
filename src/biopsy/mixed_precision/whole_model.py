"""A model with every layer in fp16 that can be: what ``--fp-to-fp16`` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.mixed_precision.constants import RangeLoss
from biopsy.mixed_precision.formats import FP16, FP32
from biopsy.mixed_precision.mixed_models import CastModels

if TYPE_CHECKING:
    import onnx


def in_fp16(model: onnx.ModelProto, folder: Path) -> tuple[bytes, int, tuple[RangeLoss, ...]]:
    """The model's bytes with nodes that compute in fp16, how many do, and the weights and constants it cannot hold.

    Inputs and outputs keep their types, with Casts behind and before them. ``folder`` is where the external weights
    stand; they are cast in the model. Raises UsageError if the model's opset has no Cast to fp16.
    """
    models = CastModels(model, FP16, FP32, "native", folder, {})
    return b"".join(models.parts(frozenset())), models.lowered(frozenset()), models.range_loss(frozenset())
