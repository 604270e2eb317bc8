"""The .npy format, read without trust: no pickles, and nothing is allocated that the bytes at hand do not back."""

from __future__ import annotations

import ast
import io
import math
import warnings
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from biopsy import errors
from biopsy.tensors import dtypes
from biopsy.tensors.results import Array, TensorForm

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 10_000
"""Bytes. numpy's own limit, for the same reason: parsing a long literal can exhaust the interpreter."""

_BEGINNING = 12 + LONGEST_HEADER
_PIECE = 3 << 15  # three bytes are four characters of base64, and the text of a piece fits into a cache
_DAMAGED = "its .npy header is damaged"
_RECORDS = frozenset(",()")


class Stream(Protocol):
    """What gives bytes, from the first to the last."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, fewer only at the end."""


def encode(array: Array) -> tuple[bytes, memoryview]:
    """The header and the data of an array that ``dtypes.storable`` gave; together they are a whole .npy file.

    Extended types are written as raw elements (``|V2``), which is what numpy does too: the reader must know the type.
    """
    descr = f"|V{array.itemsize}" if dtypes.is_extended(array.dtype) else array.dtype.str
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": array.shape})
    return header.getvalue(), dtypes.as_bytes(array)


def read(stream: Stream, size: int, dtype: str | None = None) -> Array:
    """The array in the ``size`` bytes of a .npy file that a stream is to give: read-only.

    Nothing is read that the header does not ask for. ``dtype`` names the true type of raw elements. Raises DataError if
    the bytes are no .npy file, are not as many as the header says, need a pickle, or if raw elements come without a
    type.
    """
    beginning = stream.read(min(size, _BEGINNING))
    found = _described_by(beginning, size, dtype)
    data = bytearray(found.size)
    ready = beginning[found.start :]
    data[: len(ready)] = ready
    at = len(ready)
    with memoryview(data) as view:
        while at < len(data):
            piece = stream.read(min(len(data) - at, _PIECE))
            if not piece:
                raise errors.DataError(f"its header claims {found.size} bytes, but only {at} are there")
            view[at : at + len(piece)] = piece
            at += len(piece)
    array = found.array(data, dtype)
    array.flags.writeable = False
    return array


def form(stream: Stream, size: int) -> TensorForm:
    """Type and shape of the array that ``read`` would give, from the beginning. Raises DataError as that does."""
    found = _described_by(stream.read(min(size, _BEGINNING)), size, None)
    return TensorForm(found.stored.newbyteorder("="), found.shape)


class _Described(NamedTuple):
    """What a header says of the data that begins at ``start``, ``size`` bytes of it."""

    stored: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    start: int
    size: int

    def array(self, data: bytearray, dtype: str | None) -> Array:
        try:
            flat: Array = np.ndarray((math.prod(self.shape),), self.stored, buffer=data)
            array = flat.reshape(self.shape, order="F" if self.fortran_order else "C")
        except ValueError as error:
            raise errors.DataError(f"its shape {self.shape!s:.80} is impossible: {error}") from error
        stored = self.stored
        array = array if stored.isnative else array.astype(stored.newbyteorder("="))
        return dtypes.true_form(dtypes.with_characters(array), dtype)


def _described_by(data: bytes, size: int, dtype: str | None) -> _Described:
    """What the header at the beginning of ``size`` bytes says. Raises DataError if they are too few, or too many."""
    descr, fortran_order, shape, start = _header(data)
    ended = dtype is not None and dtype.startswith(dtypes.TERMINATED)
    stored = _stored_dtype(descr, None if ended else dtype)
    dtypes.require_possible(stored, shape)
    needed = math.prod(shape) * stored.itemsize
    if needed != size - start:
        only = "only " if needed > size - start else ""
        raise errors.DataError(f"its header claims {needed} bytes, but {only}{size - start} are there")
    return _Described(stored, fortran_order, shape, start, needed)


def _header(data: bytes) -> tuple[Any, bool, tuple[int, ...], int]:
    """(type, whether in Fortran order, shape, where the data starts)."""
    if data[:6] != MAGIC or len(data) < 10:
        raise errors.DataError("it is no .npy data, or cut short")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    if data[6] not in {1, 2, 3} or end - start > LONGEST_HEADER or end > len(data):
        raise errors.DataError("its .npy header is damaged, or cut short")
    try:
        text = data[start:end].decode("utf-8" if data[6] == 3 else "latin-1")
    except UnicodeDecodeError as error:
        raise errors.DataError("its .npy header is no text") from error
    descr, fortran_order, shape = _described(text.strip(" \t\r\n"))
    return descr, fortran_order, shape, end


@lru_cache
def _described(text: str) -> tuple[Any, bool, tuple[int, ...]]:
    """What a header's text says. Files of thousands of tensors have few different ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python would tell of odd literals on stderr
            header = ast.literal_eval(text)
        descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise errors.DataError(_DAMAGED) from error
    if not isinstance(shape, tuple) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise errors.DataError(f"its .npy header has no valid shape: {shape!r:.80}")
    if not isinstance(descr, str) or not isinstance(fortran_order, bool):
        raise errors.DataError("its elements are records, not numbers" if isinstance(descr, list) else _DAMAGED)
    return descr, fortran_order, shape


def _stored_dtype(descr: str, named: str | None) -> np.dtype[Any]:
    if _RECORDS & set(descr):  # numpy has a language for them
        raise errors.DataError("its elements are records, not numbers")
    try:
        stored = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise errors.DataError(f"its elements are of an unknown type: {descr!r:.80}") from error
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
