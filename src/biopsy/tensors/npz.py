"""The .npz format: a zip archive of .npy members. Extended types are raw elements there, typed by the index."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from biopsy import errors
from biopsy.tensors import archive, npy
from biopsy.tensors.dtypes import is_extended
from biopsy.tensors.results import Array
from biopsy.tensors.saved import Saved

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


_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError)
"""What the zipfile module raises for archives that are cut short, changed, encrypted or packed in an unknown way."""

FORM = archive.Form(_holds_key, lambda array: not is_extended(array.dtype) and array.dtype.kind != "O")


def parts(saved: Saved) -> Iterator[bytes]:
    """The bytes of a .npz file, about one tensor at a time; not compressed, as np.savez writes it."""
    packed = archive.pack(saved, FORM)
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


def read(path: Path) -> Saved:
    """The contents of a .npz file, ours or any other. Raises DataError if it is damaged or holds a pickle."""
    try:
        with zipfile.ZipFile(path) as stream:
            by_file = {info.filename: info for info in stream.infolist()}
            index = by_file.pop(INDEX, None)
            members = {name.removesuffix(".npy"): info for name, info in by_file.items()}

            def read_array(key: str, dtype: str | None) -> Array:
                return npy.decode(stream.read(members[key]), dtype)

            text = None if index is None else stream.read(index)
            return archive.unpack(text, members.keys(), read_array, path.stem)
    except _DAMAGE as error:
        raise errors.DataError(f"it is no .npz file, or damaged: {error}") from error
    except MemoryError as error:
        raise errors.DataError("it claims more data than fits into memory") from error


def first_array(data: bytes) -> Array:
    """The first array of a .npz file in memory. Raises DataError if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as stream:
            names = stream.namelist()
            if not names:
                raise errors.DataError("it is an empty .npz archive")
            return npy.decode(stream.read(names[0]))
    except _DAMAGE as error:
        raise errors.DataError(f"its .npz data is damaged: {error}") from error
