"""The formats .npy and .npz, for untrusted files: pickles are not read, and no more memory is allocated than the file
has bytes for.
"""

from __future__ import annotations

import ast
import io
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from biopsy import errors
from biopsy.processes.own_process import memory
from biopsy.processes.reading import open_plain
from biopsy.tensors import types
from biopsy.tensors.container import Container, Form, pack, unpack, with_storable_arrays
from biopsy.tensors.results import Array, TensorForm
from biopsy.tensors.types import is_extended

INDEX = "biopsy.json"
"""The member with the index. Members with arrays end in .npy, so no tensor can have this name."""

LONGEST_KEY = 60_000
"""The most bytes of a key; names in a zip archive have up to 65,535."""


def _holds_key(key: str) -> bool:
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return bool(key) and "\0" not in key and "\\" not in key and len(encoded) < LONGEST_KEY


_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The methods that NumPy writes."""

_MOST_DEFLATED = 1032
"""The greatest ratio of inflated to deflated bytes."""

_LOCAL_HEADER = 30  # bytes before a member, and its name
_LONGEST_INDEX = 256 << 20

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, struct.error
)  # fmt: skip
"""The exceptions of zipfile for archives that are cut short, changed, encrypted or packed in an unknown way."""

FORM = Form(_holds_key, lambda array: not is_extended(array.dtype) and array.dtype.kind != "O")


def parts(container: Container) -> Iterator[bytes]:
    """The bytes of a .npz file, about one tensor at a time, without compression, as np.savez writes it."""
    packed = pack(with_storable_arrays(container), FORM)
    window = _Window()
    # zipfile seeks back only within the member that it has just written.
    with zipfile.ZipFile(window, "w", zipfile.ZIP_STORED, allowZip64=True) as stream:
        if packed.index is not None:
            stream.writestr(_member(INDEX), packed.index)
            yield window.drain()
        for key, array in packed.arrays.items():
            header, data = encode(array)
            with stream.open(_member(f"{key}.npy"), "w", force_zip64=True) as member:
                member.write(header)
                member.write(data)
            yield window.drain()
    yield window.drain()


def _member(name: str) -> zipfile.ZipInfo:
    # A fixed date, so that the same tensors give the same bytes.
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


class _Window(io.BytesIO):
    """The end of a growing file: drained bytes are dropped, and positions still count from the file's start."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0

    def tell(self) -> int:
        return self._before + super().tell()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._before + super().seek(offset - self._before if whence == 0 else offset, whence)

    def drain(self) -> bytes:
        data = self.getvalue()
        self._before += len(data)
        super().seek(0)
        self.truncate(0)
        return data


def read(path: Path) -> Container:
    """The contents of any .npz file. Raises DataError if it is damaged or holds a pickle."""
    try:
        with open_plain(path, follow=True) as file, zipfile.ZipFile(file) as stream:
            by_file = _members(stream)
            index = by_file.pop(INDEX, None)
            members = {name.removesuffix(".npy"): info for name, info in by_file.items()}

            def read_array(key: str, dtype: str | None) -> Array:
                with stream.open(members[key]) as member:
                    return read_npy(member, members[key].file_size, dtype)

            text = None
            if index is not None:
                if index.file_size > _LONGEST_INDEX:
                    raise errors.DataError(f"its index is larger than {_LONGEST_INDEX >> 20} MiB")
                with stream.open(index) as member:
                    # With a size, since read() would inflate all data, whatever size the directory has.
                    text = member.read(index.file_size) if index.file_size else b""
            return unpack(text, members.keys(), read_array, path.stem)
    except _DAMAGE as error:
        raise errors.DataError(f"it is no .npz file, or damaged: {error}") from error
    except MemoryError as error:
        raise errors.DataError("it claims more data than fits into memory") from error


def _members(stream: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name. Raises DataError if the directory is false, or if they do not fit into memory.

    Without these checks, a small file could fill the memory: deflated data expands a thousand times, and several
    members may share their bytes.
    """
    infos = stream.infolist()
    by_name = {info.filename: info for info in infos}
    if len(by_name) < len(infos):
        raise errors.DataError("two of its members have one name")
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise errors.DataError(f"the member {info.filename!r:.80} overlaps another one")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size
        most = info.compress_size * _MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else info.compress_size
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise errors.DataError(f"the member {info.filename!r:.80} is packed in a way that is not read")
        if info.file_size > most:
            raise errors.DataError(f"the member {info.filename!r:.80} cannot be as large as the directory says")
    total = sum(info.file_size for info in infos)
    if total > memory():
        raise errors.DataError(
            f"it holds {total / 1e9:.1f} GB of data, and there are {memory() / 1e9:.1f} GB of memory"
        )
    return by_name


def first_array(data: bytes) -> Array:
    """The first array of a .npz file in memory. Raises DataError if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as stream:
            members = list(_members(stream).values())
            if not members:
                raise errors.DataError("it is an empty .npz archive")
            with stream.open(members[0]) as member:
                return read_npy(member, members[0].file_size)
    except _DAMAGE as error:
        raise errors.DataError(f"its .npz data is damaged: {error}") from error
    except MemoryError as error:
        raise errors.DataError("it claims more data than fits into memory") from error


MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 10_000
"""The most bytes of a header. NumPy has the same limit, since parsing a long literal can crash the interpreter."""

_BEGINNING = 12 + LONGEST_HEADER
_PIECE = 3 << 15  # a multiple of 3, since 3 bytes are 4 characters of base64; its text fits into a cache
_DAMAGED = "its .npy header is damaged"
_RECORDS = frozenset(",()")


class Stream(Protocol):
    """Bytes that are read from the first to the last."""

    def read(self, size: int, /) -> bytes:
        """The next ``size`` bytes, fewer only at the end."""


def encode(array: Array) -> tuple[bytes, memoryview]:
    """The header and the data of a .npy file, from an array that ``types.storable`` gave.

    Extended types are written as raw elements (``|V2``), as by NumPy: the reader must know the type.
    """
    descr = f"|V{array.itemsize}" if types.is_extended(array.dtype) else array.dtype.str
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": array.shape})
    return header.getvalue(), types.as_bytes(array)


def read_npy(stream: Stream, size: int, dtype: str | None = None) -> Array:
    """The read-only array of a .npy file, from a stream with its ``size`` bytes.

    ``dtype`` is the true type of raw elements. Raises DataError if the bytes are no .npy file, do not match the size in
    the header, hold a pickle, or hold raw elements without a type.
    """
    beginning = stream.read(min(size, _BEGINNING))
    header = _header_of(beginning, size, dtype)
    data = bytearray(header.size)
    ready = beginning[header.start :]
    data[: len(ready)] = ready
    at = len(ready)
    with memoryview(data) as view:
        while at < len(data):
            piece = stream.read(min(len(data) - at, _PIECE))
            if not piece:
                raise errors.DataError(f"its header claims {header.size} bytes, but only {at} are there")
            view[at : at + len(piece)] = piece
            at += len(piece)
    array = header.array(data, dtype)
    array.flags.writeable = False
    return array


def form(stream: Stream, size: int) -> TensorForm:
    """Type and shape of the array that ``read_npy`` would give, from the header. Raises DataError as ``read_npy``."""
    header = _header_of(stream.read(min(size, _BEGINNING)), size, None)
    return TensorForm(header.stored.newbyteorder("="), header.shape)


class _Header(NamedTuple):
    """A .npy header; the data has ``size`` bytes from ``start`` on."""

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
        return types.true_form(types.with_characters(array), dtype)


def _header_of(data: bytes, size: int, dtype: str | None) -> _Header:
    """The header of a file of ``size`` bytes that begins with ``data``. Raises DataError if it is damaged or false."""
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
        raise errors.DataError("its .npy header is not text") from error
    descr, fortran_order, shape = _parsed_header(text.strip(" \t\r\n"))
    is_terminated = dtype is not None and dtype.startswith(types.TERMINATED)
    stored = _stored_dtype(descr, None if is_terminated else dtype)
    types.require_possible(stored, shape)
    needed = math.prod(shape) * stored.itemsize
    if needed != size - end:
        only = "only " if needed > size - end else ""
        raise errors.DataError(f"its header claims {needed} bytes, but {only}{size - end} are there")
    return _Header(stored, fortran_order, shape, end, needed)


@lru_cache
def _parsed_header(text: str) -> tuple[Any, bool, tuple[int, ...]]:
    """Type, order and shape in a header's text; cached, since thousands of tensors have few different headers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about some literals
            header = ast.literal_eval(text)
        descr, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise errors.DataError(_DAMAGED) from error
    if not isinstance(shape, tuple) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise errors.DataError(f"its .npy header has no valid shape: {shape!r:.80}")
    if not isinstance(descr, str) or not isinstance(fortran_order, bool):
        raise errors.DataError("its elements are records, not numbers" if isinstance(descr, list) else _DAMAGED)
    return descr, fortran_order, shape


def _stored_dtype(descr: str, dtype: str | None) -> np.dtype[Any]:
    if _RECORDS & set(descr):  # the characters of NumPy's notation for records
        raise errors.DataError("its elements are records, not numbers")
    try:
        stored = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise errors.DataError(f"its elements are of an unknown type: {descr!r:.80}") from error
    if stored.hasobject:
        raise errors.DataError("it holds Python objects (a pickle), which could run code: it is not read")
    if dtype is not None:
        true = types.dtype_named(dtype)
        if true.itemsize == stored.itemsize and stored.kind == "V":
            return true
        raise errors.DataError(f"its elements of type {stored} cannot be {dtype}")
    if stored.kind == "V":
        raise errors.DataError(
            f"its elements are raw values of {stored.itemsize} bytes: numpy did not save their type (bfloat16?)",
            next_steps=["save it as .safetensors, which keeps such types"],
        )
    if stored.kind not in types.KINDS:
        raise errors.DataError(f"its elements are of type {stored}, which no ONNX tensor has")
    return stored
