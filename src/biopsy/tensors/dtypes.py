"""Element types of tensors on disk: numpy's own, and those of ml_dtypes (bfloat16, float8, int4, ...)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
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
        # Not all classes there are types of numbers, and numpy takes any other class for Python objects.
        if isinstance(extended, type) and is_extended(np.dtype(extended)):
            return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise errors.DataError(f"{name!r} is no element type known here") from error
    if dtype.kind not in KINDS:
        raise errors.DataError(f"elements of type {name!r} cannot be read")
    return dtype


_MOST_DIMENSIONS_OF_NUMPY = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
"""Its own limit."""

_MOST_EMPTY = 1 << 20
"""Elements of no byte that a tensor may have: texts without a character, which no file need back by anything."""


def require_possible(dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise DataError if no array can have this type and shape, or if it would be large and have nothing behind it."""
    if len(shape) > _MOST_DIMENSIONS_OF_NUMPY:
        raise errors.DataError(f"it has {len(shape)} dimensions: at most {_MOST_DIMENSIONS_OF_NUMPY} are read")
    # An array without elements has strides, which numpy computes from its other sizes.
    spread = math.prod(size for size in shape if size > 0) * max(dtype.itemsize, 1)
    if any(size < 0 for size in shape) or spread >= 1 << 63:
        raise errors.DataError(f"its shape {list(shape)!s:.80} is impossible")
    if dtype.itemsize == 0 and math.prod(shape) > _MOST_EMPTY:
        raise errors.DataError(f"its header claims {math.prod(shape)} elements of no byte")


def with_characters(array: Array) -> Array:
    """The array. Raises DataError if it is text with numbers that are no characters: numpy would raise, but later."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if int(codes.max()) > sys.maxunicode:
            raise errors.DataError("its text holds numbers that are no characters")
    return array


def storable(name: str, value: Any) -> Array:
    """A tensor as it goes into a file: in C order, little-endian, strings as ``text`` gives them.

    Copies only what is not in that form yet. Raises DataError naming the tensor if it holds anything else.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        array = _stored_text(name, array)
        if array.dtype.kind == "O":
            return np.asarray(array, order="C")
    dtype = array.dtype
    if dtype.kind not in KINDS and not is_extended(dtype):
        raise errors.DataError(f"tensor {name!r} of type {dtype} cannot be saved: no ONNX tensor has that type")
    if dtype.kind in "US" and dtype.itemsize == 0:
        array = array.astype(f"{dtype.kind}1")
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(dtype.newbyteorder("<"))
    return np.asarray(array, order="C")


def _stored_text(name: str, array: Array) -> Array:
    if not all(isinstance(element, str | bytes) for element in array.flat):
        raise errors.DataError(f"tensor {name!r} holds Python objects that are no strings: it cannot be saved")
    return text(array)


# Strings


TERMINATED = "text"
"""What the name of a type begins with, such as "text<U8", where every string has one more character behind it: in files
strings are NumPy's text of a fixed width, and that loses zeros at the end."""

_END = "."


def is_text(array: Array) -> bool:
    """Whether a tensor holds strings."""
    return array.dtype.kind in "USOT"


def text(array: Array) -> Array:
    """Strings, given as objects of str or bytes, in NumPy's type for text; as objects of str where that would lose
    zeros at the end. Bytes that are no UTF-8 are escaped as PEP 383 has it.
    """
    strings = np.empty(array.shape, object)
    strings.reshape(-1)[:] = [_string(one) for one in array.reshape(-1).tolist()]
    ends = any(one.endswith("\0") for one in strings.flat)
    return strings if ends else strings.astype(np.str_)


def _string(one: object) -> str:
    return one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one)


def text_bytes(array: Array) -> Array:
    """The bytes of strings, in UTF-8, as objects; bytes as they are."""
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = [_encoded(one) for one in array.reshape(-1).tolist()]
    return found


def _encoded(one: object) -> bytes:
    if isinstance(one, bytes):
        return one
    try:
        return str(one).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which no escaped byte is
        return str(one).encode("utf-8", "surrogatepass")


def stored_form(array: Array) -> tuple[Array, str]:
    """An array that ``storable`` gave as its bytes go into a file, and the name of its type (see ``true_form``)."""
    if array.dtype.kind == "O":
        ended = terminated(array)
        return ended, TERMINATED + ended.dtype.str
    return array, array.dtype.name if is_extended(array.dtype) else array.dtype.str


def stored_type(name: str) -> np.dtype[Any]:
    """The type that elements have in a file, from the name that ``stored_form`` gave. Raises as ``dtype_named``."""
    return dtype_named(name.removeprefix(TERMINATED))


def true_form(array: Array, name: str | None) -> Array:
    """What an array of a file stands for; ``name`` as ``stored_form`` gave it. Raises DataError if it is damaged."""
    return unterminated(array) if name is not None and name.startswith(TERMINATED) else array


def terminated(array: Array) -> Array:
    """Strings with one more character behind each."""
    return np.asarray([one + _END for one in array.reshape(-1).tolist()], np.str_).reshape(array.shape)


def unterminated(array: Array) -> Array:
    """What ``terminated`` was made of. Raises DataError if it is not that."""
    strings = array.reshape(-1).tolist()
    if array.dtype.kind != "U" or not all(one.endswith(_END) for one in strings):
        raise errors.DataError("its strings are damaged")
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = [one[: -len(_END)] for one in strings]
    return found


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
