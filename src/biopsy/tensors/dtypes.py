"""Element types of tensors on disk: numpy's own, and those of ml_dtypes (bfloat16, float8, int4, ...)."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.results import Array

KINDS = "biufcUS"
"""Kinds of numpy types that may stand in a file: numbers, bool, text and bytes. Never objects."""

_NUMPYS_OWN = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Types that are never looked for in ml_dtypes, whose import costs time."""


def is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether a type comes from ml_dtypes: numpy's file formats lose its name."""
    return dtype.isbuiltin == 2


@lru_cache(maxsize=64)
def dtype_named(name: str) -> np.dtype[Any]:
    """The type of a name such as "float32", "bfloat16", "int4" or "<U7".

    Raises DataError if there is no such type, or if it may not stand in a file (objects, records).
    """
    if name.isidentifier() and name not in _NUMPYS_OWN:
        import ml_dtypes

        extended = getattr(ml_dtypes, name, None)
        if isinstance(extended, type):
            return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError) as error:
        raise errors.DataError(f"'{name}' is no element type known here") from error
    if dtype.kind not in KINDS:
        raise errors.DataError(f"elements of type '{name}' cannot be read")
    return dtype


def storable(name: str, value: Any) -> Array:
    """A tensor as it goes into a file: in C order, little-endian, objects of str as text.

    Copies only what is not in that form yet. Raises DataError naming the tensor if it holds anything else.
    """
    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = _text(name, array)
    elif array.dtype.kind == "T":
        array = array.astype(np.str_)
    dtype = array.dtype
    if dtype.kind not in KINDS and not is_extended(dtype):
        raise errors.DataError(f"tensor '{name}' of type {dtype} cannot be saved: no ONNX tensor has that type")
    if dtype.kind in "US" and dtype.itemsize == 0:
        array = array.astype(f"{dtype.kind}1")
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(dtype.newbyteorder("<"))
    return np.asarray(array, order="C")


def _text(name: str, array: Array) -> Array:
    if not all(isinstance(element, str) for element in array.flat):
        raise errors.DataError(f"tensor '{name}' holds Python objects that are no strings: it cannot be saved")
    return array.astype(np.str_)


def widened(array: Array) -> Array:
    """The same values in a type that every numpy knows: float32 for extended floats, int8 or uint8 for small integers.

    Without loss. What is no extended type is returned as it is.
    """
    if not is_extended(array.dtype):
        return array
    name = array.dtype.name
    if "complex" in name:
        return array.astype(np.complex64)
    if name.startswith("uint"):
        return array.astype(np.uint8)
    return array.astype(np.int8 if name.startswith("int") else np.float32)


def as_bytes(array: Array) -> memoryview:
    """The bytes of an array in C order, without copying."""
    return array.reshape(-1).view(np.uint8).data
