"""The .safetensors format, read through a memory map without copying, which nobody may write to meanwhile."""

from __future__ import annotations

import json
import math
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.processes.reading import open_plain
from biopsy.tensors import types
from biopsy.tensors.container import Container, Form, changed, pack, unpack, with_storable_arrays
from biopsy.tensors.results import Array, TensorsByName

METADATA = "__metadata__"
INDEX = "biopsy"

READ = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
"""Type in the file -> name of the type."""

WRITTEN = {name: code for code, name in READ.items() if code not in {"F8_E8M0", "C64"}}
"""Only what every version of the safetensors package reads since 0.5."""


def _holds_key(key: str) -> bool:
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return key != METADATA


FORM = Form(_holds_key, lambda array: array.dtype.name in WRITTEN)


def parts(container: Container) -> Iterator[bytes | memoryview]:
    """The bytes of a .safetensors file: a header, then the tensors as they lie in memory.

    The header names the tensors in their order; the data is ordered by falling element size, so that each is aligned.
    """
    packed = pack(with_storable_arrays(container), FORM)
    header: dict[str, Any] = {} if packed.index is None else {METADATA: {INDEX: packed.index}}
    # What an element's address must be a multiple of, for numpy: 4 for text, half a complex number, ...
    ordered = sorted(packed.arrays, key=lambda key: -packed.arrays[key].dtype.alignment)
    starts = dict(zip(ordered, accumulate((packed.arrays[key].nbytes for key in ordered), initial=0), strict=False))
    header.update((key, described(array, starts[key])) for key, array in packed.arrays.items())
    text = header_text(header)
    yield len(text).to_bytes(8, "little") + text
    for key in ordered:
        yield types.as_bytes(packed.arrays[key])


def described(array: Array, start: int) -> dict[str, Any]:
    """The entry of an array in the header; ``start`` in bytes from the end of the header."""
    held = FORM.holds_type(array)
    return {
        "dtype": WRITTEN[array.dtype.name] if held else "U8",
        "shape": list(array.shape) if held else [*array.shape, array.itemsize],
        "data_offsets": [start, start + array.nbytes],
    }


def header_text(entries: Mapping[str, Any]) -> bytes:
    """The header, of a multiple of 8 bytes, without its length in front of it."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return text + b" " * (-len(text) % 8)


def read(path: Path) -> Container:
    """The contents of a .safetensors file, ours or any other; every array is a read-only view of the mapped file.

    Raises DataError if it is damaged or cut short, or holds a type that no array can have; who asks for a tensor after
    the file was written to gets one too.
    """
    import safetensors

    try:
        with open_plain(path, follow=True) as stream:
            try:
                with safetensors.safe_open(path, framework="np"):
                    pass
            except (safetensors.SafetensorError, OSError, ValueError) as error:
                raise errors.DataError(f"it is no .safetensors file, or damaged: {error}") from error
            if not os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                raise errors.DataError("another file has come to stand there while it was read")
            watch = UnchangedFile(path, stream.fileno())
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise errors.DataError(f"it cannot be mapped into memory: {error}") from error
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    metadata = header.pop(METADATA, None) or {}

    def read_array(key: str, dtype: str | None) -> Array:
        entry = header[key]
        if entry["dtype"] not in READ:
            raise errors.DataError(f"its elements are of type {entry['dtype']}, which is not read")
        stored = types.stored_type(dtype or READ[entry["dtype"]])
        shape = tuple(entry["shape"])
        types.require_possible(stored if dtype is None else np.dtype(np.uint8), shape)
        if dtype is not None:
            if not shape or shape[-1] != stored.itemsize or entry["dtype"] != "U8":
                raise errors.DataError(f"its bytes cannot be {dtype}")
            shape = shape[:-1]
            types.require_possible(stored, shape)
        begin, end = entry["data_offsets"]
        if end - begin != math.prod(shape) * stored.itemsize or start + end > len(mapped):
            raise errors.DataError("its size does not match its shape")
        array: Array = np.ndarray(shape, stored, buffer=mapped, offset=start + begin)
        # Other programs need not align: engines expect it.
        return types.true_form(types.with_characters(array if array.flags.aligned else array.copy()), dtype)

    container = unpack(metadata.get(INDEX), header.keys(), read_array, path.stem)
    runners = (runner.with_outputs(lambda _, each: _Watched(each.outputs, watch)) for runner in container.runners)
    return replace(container, runners=tuple(runners))


# Tensors that are views of a mapped file, which nobody may write to meanwhile: who reads behind its end dies.


class UnchangedFile:
    """Tells whether a file is as it was when this was made. One that is replaced by another stays as it was."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is of the file, and may be closed afterwards."""
        self._path = path
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._state_now()

    def __call__(self) -> None:
        """Raise DataError if the file has been written to or cut short."""
        now = self._state_now()
        if now != self._state:
            raise changed(self._path, self._state[0], now[0])

    def _state_now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


class _Watched(TensorsByName[Array]):
    """Arrays by name; each is handed out only if the file is as it was."""

    def __init__(self, arrays: Mapping[str, Array], watch: Callable[[], None]) -> None:
        super().__init__(arrays)
        self._watch = watch

    def __getitem__(self, name: str) -> Array:
        self._watch()
        return self.sources[name]

    def __repr__(self) -> str:
        return repr(self.sources)
