"""A tensor as the base64 text of a .npy file that stands in JSON: described by its beginning, decoded when needed."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from biopsy import errors
from biopsy.tensors import dtypes, npy, npz
from biopsy.tensors.json_skeleton import Text
from biopsy.tensors.results import Array, TensorForm, form_of_array
from biopsy.tensors.steady_file import Read

_T = TypeVar("_T")

_NPY = base64.b64encode(npy.MAGIC)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PIECE = 1 << 18


@dataclass(frozen=True)
class Base64Tensor:
    """``text`` stands for a .npy or .npz file; ``dtype`` names the true type of its elements, if .npy does not."""

    text: Text
    dtype: str | None = None

    def array(self) -> Array:
        """The tensor, read-only. Raises DataError if the text is damaged, or its file has changed."""
        return _in_true_type(self._found(lambda stream: npy.read(stream, stream.size), lambda array: array), self.dtype)

    def form(self) -> TensorForm:
        """Type and shape, read off the first characters wherever that is possible. Raises DataError as ``array``."""
        stored = self._found(lambda stream: npy.form(stream, stream.size), form_of_array)
        return _true_form(stored, self.dtype)

    @property
    def may_be_copied(self) -> bool:
        """Whether the text as it stands is what a file of ours would have for these numbers.

        Raises DataError if its beginning is damaged, or its length does not match the shape.
        """
        self.form()
        return self._found(lambda stream: npy.form(stream, stream.size).dtype.kind not in "US", lambda _: False)

    def copied(self) -> Iterator[bytes]:
        """The text as it stands, piece by piece. Raises DataError if a character in it is not of base64."""
        size = self.text.size
        with self.text.opened() as read:
            digits = size - _padding(read, size)
            for offset in range(0, size, _PIECE):
                piece = read(offset, min(_PIECE, size - offset))
                if piece[: max(digits - offset, 0)].translate(None, _ALPHABET):
                    raise _damaged("it holds other characters")
                yield piece

    def _found(self, by_stream: Callable[[_Decoding], _T], by_array: Callable[[Array], _T]) -> _T:
        """What the text is found to hold: read piece by piece, or at once if it is of a form that is no longer written.

        That is latin-1 or a .npz file; and some programs write a backslash before each slash.
        """
        with self.text.opened() as read:
            try:
                if read(0, min(len(_NPY), self.text.size)) == _NPY:
                    return by_stream(_Decoding(read, self.text.size))
            except errors.DataError:
                if b"\\" not in read(0, self.text.size):
                    raise
            return by_array(_from_whole(read(0, self.text.size)))


class _Decoding:
    """The bytes that a base64 text stands for, from the first to the last; ``size`` of them."""

    def __init__(self, read: Read, length: int) -> None:
        self._read = read
        self._length = length
        self._at = 0
        self._ready = b""
        if length % 4:
            raise _damaged(f"{length} characters are no multiple of 4")
        self.size = length // 4 * 3 - _padding(read, length)

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        missing = size - len(self._ready)
        if missing > 0:
            self._ready += self._decoded(min(-(-missing // 3) * 4, self._length - self._at))
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def _decoded(self, length: int) -> bytes:
        data = _decoded(self._read(self._at, length))
        self._at += length
        expected = self.size % 3 - 3 if self._at == self._length and self.size % 3 else 0
        if len(data) != length // 4 * 3 + expected:
            raise _damaged("there is padding within it")
        return data


def _padding(read: Read, length: int) -> int:
    """How many of the last two characters are no digits."""
    end = read(length - 2, 2)
    return len(end) - len(end.rstrip(b"="))


def encoded(array: Array) -> Iterator[bytes]:
    """The base64 text of an array that ``dtypes.storable`` gave, piece by piece."""
    import pybase64

    header, data = npy.encode(array)
    first = -len(header) % 3
    yield pybase64.b64encode(header + data[:first])
    for offset in range(first, len(data), 3 * _PIECE):
        yield pybase64.b64encode(data[offset : offset + 3 * _PIECE])


def _in_true_type(array: Array, dtype: str | None) -> Array:
    if dtype is None:
        return array
    if dtype.startswith(dtypes.TERMINATED):
        return dtypes.true_form(array, dtype)
    true = array.astype(_true_form(form_of_array(array), dtype).dtype)
    true.flags.writeable = False
    return true


def _true_form(stored: TensorForm, dtype: str | None) -> TensorForm:
    if dtype is None:
        return stored
    if dtype.startswith(dtypes.TERMINATED):
        return TensorForm(np.dtype(object), stored.shape)
    true = dtypes.dtype_named(dtype)
    if not dtypes.is_extended(true) or stored.dtype.kind not in "iufc":
        raise errors.DataError(f"elements of type {stored.dtype} cannot stand for {true}")
    return TensorForm(true, stored.shape)


def _from_whole(text: bytes) -> Array:
    """The tensor of any text that Polygraphy has ever written, decoded at once."""
    try:
        data = _bytes(json.loads(b'"' + text + b'"'))
    except json.JSONDecodeError as error:
        raise _damaged(error.msg) from error
    except UnicodeDecodeError as error:
        raise _damaged("it is no UTF-8") from error
    return npz.first_array(data) if data[:2] == b"PK" else npy.read(io.BytesIO(data), len(data))


def _bytes(text: str) -> bytes:
    # Old files hold the bytes themselves as latin-1 text; neither beginning can be that of base64 of such data.
    if text.startswith(("\x93NUMPY", "PK\x03\x04")):
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError as error:
            raise errors.DataError("its latin-1 text is damaged") from error
    return _decoded(text)


def _decoded(text: str | bytes) -> bytes:
    import pybase64

    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _damaged(str(error)) from error


def _damaged(why: str) -> errors.DataError:
    return errors.DataError(f"its base64 text is damaged: {why}")
