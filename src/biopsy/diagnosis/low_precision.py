"""Whether a model computes in a low precision, in which values overflow that float64 holds."""

from __future__ import annotations

from typing import Literal

from biopsy.mixed_precision.formats import BFLOAT16, FLOAT16
from biopsy.model.index import ModelIndex


def low_precision(index: ModelIndex) -> Literal["fp16", "bf16"] | None:
    """The low precision that inputs or weights of a model have; None if they have none."""
    kinds = [index.tensor_type(tensor) for tensor in (*index.fed_inputs(), *index.outputs)]
    elems = {kind.elem for kind in kinds if kind is not None} | {weight.kind.elem for weight in index.weights.values()}
    return "fp16" if FLOAT16 in elems else "bf16" if BFLOAT16 in elems else None
