"""Which precisions are mixed, as a person says it, and what makes the mixed models of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from biopsy import errors
from biopsy.mixed_precision import formats
from biopsy.mixed_precision.formats import Form, Format
from biopsy.mixed_precision.mixed_models import CastModels, MixedModels
from biopsy.model.index import ModelIndex
from biopsy.model.load import parse
from biopsy.session.workspace import Workspace
from biopsy.tensors.results import Feed

Low = Literal["fp16", "bf16", "fp8", "fp8_e5m2", "int8"]
"""Low precisions; ``fp8`` is the format e4m3fn."""

High = Literal["float32", "float16"]

_LOW: Mapping[Low, Format] = {
    "fp16": formats.FP16,
    "bf16": formats.BF16,
    "fp8": formats.FP8_E4M3FN,
    "fp8_e5m2": formats.FP8_E5M2,
}
_HIGH: Mapping[High, Format] = {"float32": formats.FP32, "float16": formats.FP16}


@dataclass(frozen=True, kw_only=True)
class Precisions:
    """The two precisions of a search, and how the low one gets into a model.

    ``emulate``: low layers compute in float32, and Casts round their inputs, weights and outputs. ``native``: they
    compute in the low type. int8 has a form of its own: QuantizeLinear and DequantizeLinear.
    """

    low: Low = "fp16"
    high: High = "float32"
    form: Form = "emulate"

    def require_possible(self) -> None:
        """Raise UsageError for a high precision that int8 cannot be mixed with."""
        if self.low == "int8" and self.high != "float32":
            raise errors.UsageError("--int8 needs -p float32")


def mixed_models(index: ModelIndex, place: Workspace, precisions: Precisions, feeds: Sequence[Feed]) -> MixedModels:
    """What makes the candidates of a search; ``feeds`` calibrate int8, and are not looked at for others.

    Raises UsageError if the precisions cannot be mixed, or not in this model; ModelError for a damaged one.
    """
    model = parse(index.buffer[:], index.path)
    places = {index.names[tensor]: data for tensor, data in place.places.items()}
    if precisions.low == "int8":
        from biopsy.mixed_precision.quantized import QuantizedModels

        return QuantizedModels(model, index.folder, places, feeds)
    return CastModels(model, _LOW[precisions.low], _HIGH[precisions.high], precisions.form, index.folder, places)
