"""The .safetensors format, memory-mapped without copies. A file that is written to meanwhile is refused."""

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
from biopsy.processes.reading import FileState, open_plain
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
"""Name of a type in a file -> NumPy's or ml_dtypes' name."""

WRITTEN = {name: code for code, name in READ.items() if code not in {"F8_E8M0", "C64"}}
"""The reverse, only for types that every version of the package safetensors since 0.5 can read."""


def _holds_key(key: str) -> bool:
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return key != METADATA


FORM = Form(_holds_key, lambda array: array.dtype.name in WRITTEN)


def parts(container: Container) -> Iterator[bytes | memoryview]:
    """The bytes of a .safetensors file: a header, then the bytes of the tensors.

    The header has the tensors in their order; the data is in the order of decreasing alignment (which is 4 for text,
    and half the size of a complex number), so that every tensor is aligned.
    """
    packed = pack(with_storable_arrays(container), FORM)
    header: dict[str, Any] = {} if packed.index is None else {METADATA: {INDEX: packed.index}}
    ordered = sorted(packed.arrays, key=lambda key: -packed.arrays[key].dtype.alignment)
    starts = dict(zip(ordered, accumulate((packed.arrays[key].nbytes for key in ordered), initial=0), strict=False))
    header.update((key, described(array, starts[key])) for key, array in packed.arrays.items())
    text = header_text(header)
    yield len(text).to_bytes(8, "little") + text
    for key in ordered:
        yield types.as_bytes(packed.arrays[key])


def described(array: Array, start: int) -> dict[str, Any]:
    """The entry of an array in the header; ``start`` in bytes from the end of the header."""
    has_type = FORM.holds_type(array)
    return {
        "dtype": WRITTEN[array.dtype.name] if has_type else "U8",
        "shape": list(array.shape) if has_type else [*array.shape, array.itemsize],
        "data_offsets": [start, start + array.nbytes],
    }


def header_text(entries: Mapping[str, Any]) -> bytes:
    """The header, padded to a multiple of 8 bytes, without its length in front."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return text + b" " * (-len(text) % 8)


def read(path: Path) -> Container:
    """The contents of any .safetensors file; every array is a read-only view of the mapped file.

    Raises DataError if it is damaged or cut short, or has an unknown type. Accessing a tensor raises it, too, after the
    file was written to.
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
                raise errors.DataError("it was replaced by another file while it was read")
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
        # Other programs may not align tensors, which engines expect.
        return types.true_form(types.with_characters(array if array.flags.aligned else array.copy()), dtype)

    container = unpack(metadata.get(INDEX), header.keys(), read_array, path.stem)
    runners = (runner.with_outputs(lambda _, each: _Watched(each.outputs, watch)) for runner in container.runners)
    return replace(container, runners=tuple(runners))


class UnchangedFile:
    """Raises when a file has changed since this was made. A file that was replaced by another one has not changed.

    Reading a mapped file behind its end, after it was cut short, kills the process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is an open descriptor of the file, which may be closed afterwards."""
        self._path = path
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = FileState.of(os.fstat(self._descriptor))

    def __call__(self) -> None:
        """Raise DataError if the file has been written to or cut short."""
        now = FileState.of(os.fstat(self._descriptor))
        if now != self._state:
            raise changed(self._path, self._state.size, now.size)


class _Watched(TensorsByName[Array]):
    """Arrays by name, which can be accessed as long as the file is unchanged."""

    def __init__(self, arrays: Mapping[str, Array], watch: Callable[[], None]) -> None:
        super().__init__(arrays)
        self._watch = watch

    def __getitem__(self, name: str) -> Array:
        self._watch()
        return self.sources[name]

    def __repr__(self) -> str:
        return repr(self.sources)
