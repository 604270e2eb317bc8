"""The element types of TensorRT, as NumPy and ml_dtypes have them."""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMPY_NAMES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8", "FP8": "float8_e4m3fn", "E8M0": "float8_e8m0fnu", "INT4": "int4",
    "FP4": "float4_e2m1fn",
}  # fmt: skip
"""TensorRT's name of a type -> the one that NumPy or ml_dtypes has."""


def numpy_name(dtype: Any) -> str:
    """The name of NumPy or ml_dtypes for one of TensorRT's types; empty if there is none."""
    return _NUMPY_NAMES.get(dtype.name, "")


def numpy_type(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's type for one of TensorRT's; None if there is none that holds it element by element."""
    name = numpy_name(dtype)
    if not name or name in {"int4", "float4_e2m1fn"}:
        return None
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
