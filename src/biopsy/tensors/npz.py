"""The .npz format: a zip archive of .npy members. Extended types are raw elements there, typed by the index."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from biopsy import errors
from biopsy.filesystem.plain_file import open_plain
from biopsy.isolation.memory import memory
from biopsy.tensors import archive, npy
from biopsy.tensors.container import Container, with_storable_arrays
from biopsy.tensors.dtypes import is_extended
from biopsy.tensors.results import Array

INDEX = "biopsy.json"
"""The member that holds the index. Arrays end in .npy, so no tensor can have this name."""

LONGEST_KEY = 60_000
"""Bytes. A zip archive holds names of up to 65,535."""


def _holds_key(key: str) -> bool:
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return bool(key) and "\0" not in key and "\\" not in key and len(encoded) < LONGEST_KEY


_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""What numpy writes."""

_MOST_DEFLATED = 1032
"""Times: no byte of deflated data stands for more."""

_LOCAL_HEADER = 30  # bytes before a member, and its name
_LONGEST_INDEX = 256 << 20

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, struct.error
)  # fmt: skip
"""What the zipfile module raises for archives that are cut short, changed, encrypted or packed in an unknown way."""

FORM = archive.Form(_holds_key, lambda array: not is_extended(array.dtype) and array.dtype.kind != "O")


def parts(container: Container) -> Iterator[bytes]:
    """The bytes of a .npz file, about one tensor at a time; not compressed, as np.savez writes it."""
    packed = archive.pack(with_storable_arrays(container), FORM)
    window = _Window()
    # Python's zipfile writes to the window and goes back only within the member it has just written.
    with zipfile.ZipFile(window, "w", zipfile.ZIP_STORED, allowZip64=True) as stream:
        if packed.index is not None:
            stream.writestr(_member(INDEX), packed.index)
            yield window.drain()
        for key, array in packed.arrays.items():
            header, data = npy.encode(array)
            with stream.open(_member(f"{key}.npy"), "w", force_zip64=True) as member:
                member.write(header)
                member.write(data)
            yield window.drain()
    yield window.drain()


def _member(name: str) -> zipfile.ZipInfo:
    # A fixed date: the same tensors are the same bytes.
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


class _Window(io.BytesIO):
    """The end of a growing file: what has been drained is gone, positions go on counting from the start."""

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
    """The contents of a .npz file, ours or any other. Raises DataError if it is damaged or holds a pickle."""
    try:
        with open_plain(path, follow=True) as file, zipfile.ZipFile(file) as stream:
            by_file = _members(stream)
            index = by_file.pop(INDEX, None)
            members = {name.removesuffix(".npy"): info for name, info in by_file.items()}

            def read_array(key: str, dtype: str | None) -> Array:
                return _array(stream, members[key], dtype)

            text = None if index is None else _index(stream, index)
            return archive.unpack(text, members.keys(), read_array, path.stem)
    except _DAMAGE as error:
        raise errors.DataError(f"it is no .npz file, or damaged: {error}") from error
    except MemoryError as error:
        raise errors.DataError("it claims more data than fits into memory") from error


def _members(stream: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name. Raises DataError if they cannot all be what the directory says, or not fit into memory.

    A deflated member may be a thousand times as large as the file, and several may share their bytes.
    """
    infos = stream.infolist()
    by_name = {info.filename: info for info in infos}
    if len(by_name) < len(infos):
        raise errors.DataError("two of its members have one name")
    end = 0
    for info in sorted(infos, key=lambda one: one.header_offset):
        if info.header_offset < end:
            raise errors.DataError(f"the member {info.filename!r:.80} overlaps another one")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size
        most = info.compress_size * _MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else info.compress_size
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise errors.DataError(f"the member {info.filename!r:.80} is packed in a way that is not read")
        if info.file_size > most:
            raise errors.DataError(f"the member {info.filename!r:.80} cannot be as large as the directory says")
    whole = sum(info.file_size for info in infos)
    if whole > memory():
        raise errors.DataError(
            f"it holds {whole / 1e9:.1f} GB of data, and there are {memory() / 1e9:.1f} GB of memory"
        )
    return by_name


def _array(stream: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: str | None = None) -> Array:
    with stream.open(info) as member:
        return npy.read(member, info.file_size, dtype)


def _index(stream: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > _LONGEST_INDEX:
        raise errors.DataError(f"its index is larger than {_LONGEST_INDEX >> 20} MiB")
    with stream.open(info) as member:
        # Asked for all that there is, zipfile inflates what it finds, whatever the directory says.
        return member.read(info.file_size) if info.file_size else b""


def first_array(data: bytes) -> Array:
    """The first array of a .npz file in memory. Raises DataError if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as stream:
            members = list(_members(stream).values())
            if not members:
                raise errors.DataError("it is an empty .npz archive")
            return _array(stream, members[0])
    except _DAMAGE as error:
        raise errors.DataError(f"its .npz data is damaged: {error}") from error
    except MemoryError as error:
        raise errors.DataError("it claims more data than fits into memory") from error
