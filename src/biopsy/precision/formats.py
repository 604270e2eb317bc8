"""Formats of numbers: what they can hold, and which of them hold all values of another.

Ranges and roundings: IEEE 754-2019 (binary16), and for the others the documents that ONNX refers to in its page on
float8 (Micikevicius et al., FP8 formats for deep learning, 2022) and on bfloat16, the upper half of a float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FLOAT, FLOAT16, BFLOAT16, E4M3FN, E5M2 = 1, 10, 16, 17, 19
"""Element types as onnx.proto3 numbers them."""

WORKING_TYPES = frozenset({FLOAT, FLOAT16, BFLOAT16})
"""Element types that a layer may be moved between. float64 is left alone: who uses it needs it."""


@dataclass(frozen=True)
class Format:
    """A format of floating-point numbers.

    ``largest`` is its greatest finite number, ``smallest`` its least positive one, ``rounding`` the greatest relative
    error of rounding a number between the least normal one, ``normal``, and the largest. ``least_opset`` is the first
    in which Cast knows it.
    """

    name: str
    elem: int
    largest: float
    smallest: float
    normal: float
    rounding: float
    least_opset: int

    def __str__(self) -> str:
        return self.name


FP32 = Format("float32", FLOAT, 3.4028234663852886e38, 2.0**-149, 2.0**-126, 2.0**-24, 6)
FP16 = Format("fp16", FLOAT16, 65504.0, 2.0**-24, 2.0**-14, 2.0**-11, 6)
BF16 = Format("bf16", BFLOAT16, 3.3895313892515355e38, 2.0**-133, 2.0**-126, 2.0**-8, 13)
FP8_E4M3FN = Format("fp8 e4m3fn", E4M3FN, 448.0, 2.0**-9, 2.0**-6, 2.0**-4, 19)
FP8_E5M2 = Format("fp8 e5m2", E5M2, 57344.0, 2.0**-16, 2.0**-14, 2.0**-3, 19)

FORMATS = (FP32, FP16, BF16, FP8_E4M3FN, FP8_E5M2)
OF_ELEM = {found.elem: found for found in FORMATS}

Form = Literal["emulate", "native"]
"""How a low precision gets into a model: by rounding around float32 arithmetic, or by nodes that compute in it."""

_HELD_BY = {
    FP32: (FP32,),
    FP16: (FP16, FP32),
    BF16: (BF16, FP32),
    FP8_E4M3FN: (FP8_E4M3FN, FP16, BF16, FP32),
    FP8_E5M2: (FP8_E5M2, FP16, BF16, FP32),
}


def holders(found: Format) -> frozenset[Format]:
    """The formats that hold every value of a format, itself among them."""
    return frozenset(_HELD_BY[found])


def suffix(elem: int) -> str:
    """What is added to the name of a tensor for its copy in another type."""
    return {FLOAT: "float", FLOAT16: "fp16", BFLOAT16: "bf16", E4M3FN: "e4m3fn", E5M2: "e5m2"}[elem]
