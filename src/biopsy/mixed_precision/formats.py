"""Formats of numbers: what they can hold, and which of them hold all values of another.

Ranges and roundings: IEEE 754-2019 (binary16), and for the others the documents that ONNX refers to in its page on
float8 (Micikevicius et al., FP8 formats for deep learning, 2022) and on bfloat16, the upper half of a float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FLOAT, FLOAT16, DOUBLE, BFLOAT16, E4M3FN, E5M2 = 1, 10, 11, 16, 17, 19
"""Element types as onnx.proto3 numbers them."""

WORKING_TYPES = frozenset({FLOAT, FLOAT16, BFLOAT16})
"""Element types that a layer may be moved between. float64 is left alone: who uses it needs it."""


@dataclass(frozen=True, kw_only=True)
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


FP64 = Format(
    name="float64",
    elem=DOUBLE,
    largest=1.7976931348623157e308,
    smallest=2.0**-1074,
    normal=2.0**-1022,
    rounding=2.0**-53,
    least_opset=6,
)
"""What nodes may be raised to; no model that has it is lowered."""
FP32 = Format(
    name="float32",
    elem=FLOAT,
    largest=3.4028234663852886e38,
    smallest=2.0**-149,
    normal=2.0**-126,
    rounding=2.0**-24,
    least_opset=6,
)
FP16 = Format(
    name="fp16",
    elem=FLOAT16,
    largest=65504.0,
    smallest=2.0**-24,
    normal=2.0**-14,
    rounding=2.0**-11,
    least_opset=6,
)
BF16 = Format(
    name="bf16",
    elem=BFLOAT16,
    largest=3.3895313892515355e38,
    smallest=2.0**-133,
    normal=2.0**-126,
    rounding=2.0**-8,
    least_opset=13,
)
FP8_E4M3FN = Format(
    name="fp8 e4m3fn",
    elem=E4M3FN,
    largest=448.0,
    smallest=2.0**-9,
    normal=2.0**-6,
    rounding=2.0**-4,
    least_opset=19,
)
FP8_E5M2 = Format(
    name="fp8 e5m2",
    elem=E5M2,
    largest=57344.0,
    smallest=2.0**-16,
    normal=2.0**-14,
    rounding=2.0**-3,
    least_opset=19,
)

FORMATS = (FP32, FP16, BF16, FP8_E4M3FN, FP8_E5M2)
OF_ELEM = {each.elem: each for each in (*FORMATS, FP64)}

Form = Literal["emulate", "native"]
"""How a low precision gets into a model: by rounding around float32 arithmetic, or by nodes that compute in it."""

_HELD_BY = {
    FP64: (FP64,),
    FP32: (FP32, FP64),
    FP16: (FP16, FP32, FP64),
    BF16: (BF16, FP32, FP64),
    FP8_E4M3FN: (FP8_E4M3FN, FP16, BF16, FP32, FP64),
    FP8_E5M2: (FP8_E5M2, FP16, BF16, FP32, FP64),
}


def holders(form: Format) -> frozenset[Format]:
    """The formats that hold every value of a format, itself among them."""
    return frozenset(_HELD_BY[form])


def suffix(elem: int) -> str:
    """What is added to the name of a tensor for its copy in another type."""
    return {DOUBLE: "double", FLOAT: "float", FLOAT16: "fp16", BFLOAT16: "bf16", E4M3FN: "e4m3fn", E5M2: "e5m2"}[elem]
