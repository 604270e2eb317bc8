"""Reads and writes the protobuf wire format, also in large files, of which only the parts in use are read.

Source of the format: https://protobuf.dev/programming-guides/encoding/. Most bytes of a model need no look: skipping
them by their lengths takes microseconds per node and no memory, however large the weights are.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, overload

from biopsy import errors

_WINDOW = 1 << 14
"""Bytes that are read when one is needed: a walk over tags and lengths needs its neighbours next."""


class FileChanged(errors.ModelError):
    """A model file was written to after it had been opened, so what was read of it no longer fits its content."""


class FileBuffer:
    """The bytes of an open file, by index and by slice.

    Every read raises FileChanged if the file has been written to or cut short since it was opened. If the path now
    names another file, the old one is read.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is that of the open file; it is duplicated. ``path`` is for messages."""
        self._path = path
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._state_now()
        self._length = self._state[0]
        self._window = 0, b""  # start and bytes, in one attribute since threads share the buffer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> bytes: ...

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self._length)
            return self._read(start, max(0, stop - start))
        start, window = self._window
        if not 0 <= key - start < len(window):
            if not 0 <= key < self._length:
                raise IndexError(key)
            start, window = key, self._read(key, min(_WINDOW, self._length - key))
            self._window = start, window
        return window[key - start]

    def __bytes__(self) -> bytes:
        return self[:]

    def _read(self, start: int, length: int) -> bytes:
        parts: list[bytes] = []
        missing = length
        while missing:
            part = os.pread(self._descriptor, missing, start + length - missing)
            if not part:
                raise self._changed()
            parts.append(part)
            missing -= len(part)
        if self._state_now() != self._state:
            raise self._changed()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _state_now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def _changed(self) -> FileChanged:
        size = os.fstat(self._descriptor).st_size
        how = f"it had {self._length} bytes, and has {size} now" if size != self._length else "it was written to"
        return FileChanged(
            f"the model {self._path} was changed while it was read: {how}",
            next_steps=["wait until it is written, then type the same again"],
        )


Buffer: TypeAlias = bytes | FileBuffer

_PIECE = 8 << 20

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field: TypeAlias = tuple[int, int, int, int, int]
"""(field number, wire type, start of the tag, start of the value, end of the value)."""


def fields(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[Field]:  # noqa: C901 -- the hot loop
    """The fields of the message in ``buffer[start:end]``, in their order.

    Raises ModelError if the bytes are not a protobuf message or are cut short.
    """
    stop = len(buffer) if end is None else end
    at = start
    try:
        while at < stop:
            tag_start = at
            tag = buffer[at]
            at += 1
            if tag >= 0x80:
                tag, at = _long_varint(buffer, at, tag)
            kind = tag & 7
            value = at
            if kind == BYTES:
                length = buffer[at]
                at += 1
                if length >= 0x80:
                    length, at = _long_varint(buffer, at, length)
                value = at
                at += length
            elif kind == VARINT:
                while buffer[at] >= 0x80:
                    at += 1
                at += 1
            elif kind in {FIXED32, FIXED64}:
                at += 4 if kind == FIXED32 else 8
            else:
                raise errors.ModelError(f"no protobuf message: wire type {kind} at byte {tag_start}")
            if at > stop or tag < 8:
                at = stop + 1
                break
            yield tag >> 3, kind, tag_start, value, at
    except IndexError:
        at = stop + 1
    if at != stop:
        raise errors.ModelError(f"the message that should end at byte {stop} is damaged or cut short")


def payloads(buffer: Buffer) -> list[tuple[int, int, int]]:
    """(field number, start, end) of each string, bytes or message field: a faster ``fields`` for complete messages.

    Raises ModelError as ``fields`` does.
    """
    spans = []
    at, stop = 0, len(buffer)
    while at + 1 < stop:
        tag, length = buffer[at], buffer[at + 1]
        end = at + 2 + length
        if tag & 0x87 != BYTES or tag < 8 or length >= 0x80 or end > stop:
            break  # another wire type, a long field or a damaged one: left to ``fields``
        spans.append((tag >> 3, at + 2, end))
        at = end
    if at < stop:
        spans += [(number, start, end) for number, kind, _, start, end in fields(buffer, at) if kind == BYTES]
    return spans


def _long_varint(buffer: Buffer, at: int, first: int) -> tuple[int, int]:
    """The value of a varint whose first byte was ``first`` and whose next byte is at ``at``, and the position after it.

    Raises ModelError if it has more than ten bytes.
    """
    value = first & 0x7F
    shift = 7
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise errors.ModelError(f"no protobuf message: a varint of over ten bytes at byte {at}")


def pieces(buffer: Buffer) -> Iterator[bytes]:
    """The bytes of a buffer in pieces of 8 MiB."""
    for at in range(0, len(buffer), _PIECE):
        yield buffer[at : at + _PIECE]


def varint_at(buffer: Buffer, at: int) -> int:
    """The unsigned varint that starts at ``at``."""
    first = buffer[at]
    return first if first < 0x80 else _long_varint(buffer, at + 1, first)[0]


def varints(buffer: Buffer, start: int, end: int) -> Iterator[int]:
    """The int64 values of a packed field."""
    while start < end:
        yield signed(varint_at(buffer, start))
        while buffer[start] >= 0x80:
            start += 1
        start += 1


def signed(value: int) -> int:
    """An unsigned varint as a two's complement int64, which ONNX's int64 and enum fields are."""
    return value - (1 << 64) if value >= 1 << 63 else value


def varint(value: int) -> bytes:
    """The encoding of an int; negative ones as ten bytes of two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=1 << 14)
def head(number: int, length: int) -> bytes:
    """The tag and length that precede the ``length`` bytes of a string, bytes or message field."""
    return varint(number << 3 | BYTES) + varint(length)


def string_field(number: int, payload: bytes) -> bytes:
    """A string, bytes or message field: tag, length and payload."""
    return head(number, len(payload)) + payload


def varint_field(number: int, value: int) -> bytes:
    """An int, enum or bool field: tag and value."""
    return varint(number << 3 | VARINT) + varint(value)


def text(payload: bytes) -> str:
    """A string field as text. ``raw`` restores bytes that are not UTF-8."""
    return payload.decode("utf-8", "surrogateescape")


def raw(name: str) -> bytes:
    """The bytes of which ``text`` made this name."""
    return name.encode("utf-8", "surrogateescape")
