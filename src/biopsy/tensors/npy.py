"""The .npy format, read without trust: no pickles, and nothing is allocated that the bytes at hand do not back."""

from __future__ import annotations

import ast
import io
import math
from functools import lru_cache
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors import dtypes
from biopsy.tensors.results import Array

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 10_000
"""Bytes. numpy's own limit, for the same reason: parsing a long literal can exhaust the interpreter."""


def encode(array: Array) -> tuple[bytes, memoryview]:
    """The header and the data of an array that ``dtypes.storable`` gave; together they are a whole .npy file.

    Extended types are written as raw elements (``|V2``), which is what numpy does too: the reader must know the type.
    """
    descr = f"|V{array.itemsize}" if dtypes.is_extended(array.dtype) else array.dtype.str
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": array.shape})
    return header.getvalue(), dtypes.as_bytes(array)


def decode(data: bytes, dtype: str | None = None) -> Array:
    """The array in the bytes of a .npy file: a read-only view of them wherever that is possible.

    ``dtype`` names the true type of raw elements. Raises DataError if the bytes are no .npy file, are cut short, need a
    pickle, or if raw elements come without a type.
    """
    descr, fortran_order, shape, start = _header(data)
    ended = dtype is not None and dtype.startswith(dtypes.TERMINATED)
    stored = _stored_dtype(descr, None if ended else dtype)
    count = math.prod(shape)
    present = len(data) - start
    if count * stored.itemsize > present:
        raise errors.DataError(f"its header claims {count * stored.itemsize} bytes, but only {present} are there")
    try:
        flat: Array = np.ndarray((count,), stored, buffer=data, offset=start)
        array = flat.reshape(shape, order="F" if fortran_order else "C")
    except ValueError as error:
        raise errors.DataError(f"its shape {shape} is impossible: {error}") from error
    return dtypes.true_form(array if stored.isnative else array.astype(stored.newbyteorder("=")), dtype)


def _header(data: bytes) -> tuple[Any, bool, tuple[int, ...], int]:
    """(type, whether in Fortran order, shape, where the data starts)."""
    if data[:6] != MAGIC or len(data) < 10:
        raise errors.DataError("it is no .npy data, or cut short")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    if data[6] not in {1, 2, 3} or end - start > LONGEST_HEADER or end > len(data):
        raise errors.DataError("its .npy header is damaged, or cut short")
    descr, fortran_order, shape = _described(data[start:end].decode("utf-8" if data[6] == 3 else "latin-1").strip())
    return descr, fortran_order, shape, end


@lru_cache
def _described(text: str) -> tuple[Any, bool, tuple[int, ...]]:
    """What a header's text says. Files of thousands of tensors have few different ones."""
    try:
        header = ast.literal_eval(text)
        descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise errors.DataError("its .npy header is damaged") from error
    if not isinstance(shape, tuple) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise errors.DataError(f"its .npy header has no valid shape: {shape!r:.80}")
    return descr, bool(fortran_order), shape


def _stored_dtype(descr: Any, named: str | None) -> np.dtype[Any]:
    try:
        stored = np.dtype(descr) if isinstance(descr, str) else None
    except (TypeError, ValueError) as error:
        raise errors.DataError(f"its elements are of an unknown type: {descr!r:.80}") from error
    if stored is None:
        raise errors.DataError("its elements are records, not numbers")
    if stored.hasobject:
        raise errors.DataError("it holds Python objects (a pickle), which could run code: it is not read")
    if named is not None:
        true = dtypes.dtype_named(named)
        if true.itemsize == stored.itemsize and stored.kind == "V":
            return true
        raise errors.DataError(f"its elements of type {stored} cannot be {named}")
    if stored.kind == "V":
        raise errors.DataError(
            f"its elements are raw values of {stored.itemsize} bytes: numpy did not save their type (bfloat16?)",
            next_steps=["save it as .safetensors, which keeps such types"],
        )
    if stored.kind not in dtypes.KINDS:
        raise errors.DataError(f"its elements are of type {stored}, which no ONNX tensor has")
    return stored
