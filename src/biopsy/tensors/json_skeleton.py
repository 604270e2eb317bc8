"""JSON without its long texts: what remains of a file of tensors is small, and is parsed as usual.

Inside a JSON string every quote has a backslash before it. So ``"array"`` without one before it is a whole string, or
the file is no JSON; with a colon and a quote behind, it is a key and its value is a string, which ends at the next
quote. Long values of that key are left out of the skeleton, each with a mark in its place that nobody can guess.
Nothing is decoded, and nothing but the skeleton is kept. Whatever is no JSON at any place stays that, since everything
in front of that place is parsed as it stands, except for the insides of strings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from biopsy import errors
from biopsy.tensors.steady_file import Read, SteadyFile

_KEY = b'"array"'
_VALUE = re.compile(rb'[ \t\n\r]*:[ \t\n\r]*"([^"\\]*)')
_MOST_SPACE = 64
LONG = 1024
"""Bytes of the shortest text that is left out."""

_PIECE = 1 << 16


class Text(Protocol):
    """A string of a JSON file as it stands there, between its quotes."""

    @property
    def size(self) -> int:
        """Bytes."""

    def opened(self) -> Any:
        """A context with what reads it: (offset, number of bytes). Raises DataError if that cannot be any more."""


@dataclass(frozen=True)
class TextInFile:
    """A string that is left in its file, from byte ``start`` on."""

    file: SteadyFile
    start: int
    size: int

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """What reads it. Raises DataError if the file has changed."""
        with self.file.opened() as read:
            yield lambda offset, size: read(self.start + offset, size)


@dataclass(frozen=True)
class TextInMemory:
    """A short string."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """What reads it."""
        yield lambda offset, size: self.data[offset : offset + size]


@dataclass(frozen=True)
class Skeleton:
    """A JSON file without its long texts: ``text`` has marks in their place, and ``left_out`` says which is which."""

    text: bytes
    left_out: Mapping[str, TextInFile]

    def parsed(self, object_hook: Any) -> Any:
        """The tree, with marks for texts. Raises DataError if it is no JSON."""
        try:
            return json.loads(self.text, object_hook=object_hook)
        except json.JSONDecodeError as error:
            place = self._place_in_file(error.doc[: error.pos])
            raise errors.DataError(f"it is no JSON file, or cut short: {error.msg}, at byte {place}") from error
        except (ValueError, RecursionError) as error:
            raise errors.DataError(f"it is no JSON file, or cut short: {error}") from error

    def _place_in_file(self, before: str) -> int:
        texts = list(self.left_out.items())
        count = before.count(texts[0][0].partition(":")[0]) if texts else 0
        return len(before.encode("utf-8", "surrogatepass")) + sum(text.size - len(mark) for mark, text in texts[:count])


def skeleton_of(file: SteadyFile) -> Skeleton:
    """What a JSON file holds without its long texts. Raises DataError if it ends within one, or changes meanwhile."""
    with file.opened() as read:
        if not json.detect_encoding(read(0, min(4, file.size))).startswith("utf-8"):
            return Skeleton(read(0, file.size), {})
        return _without_texts(file, _Sight(read, file.size))


def _without_texts(file: SteadyFile, sight: _Sight) -> Skeleton:
    nonce = os.urandom(16).hex()
    kept: list[bytes] = []
    left_out: dict[str, TextInFile] = {}
    done = 0
    for start, end in _texts(sight):
        mark = f"{nonce}:{len(left_out)}"
        left_out[mark] = TextInFile(file, start, end - start)
        kept += sight.part(done, start), mark.encode("ascii")
        done = end
    return Skeleton(b"".join([*kept, sight.part(done, file.size)]), left_out)


def _texts(sight: _Sight) -> Iterator[tuple[int, int]]:
    """Where the long values of the key begin and end, without their quotes."""
    at = 0
    while (key := sight.find(_KEY, at)) >= 0:
        at = key + len(_KEY)
        value = _VALUE.match(sight.part(at, at + _MOST_SPACE + LONG))
        if value is None or len(value[1]) < LONG or sight.part(max(key - 1, 0), key) == b"\\":
            continue
        at += value.start(1)
        end = sight.find(b'"', at)
        if end < 0:
            raise errors.DataError(f"it is no JSON file, or cut short: the text that begins at byte {at} has no end")
        # With a backslash before the quote, it is not the end, nor is this base64: it is parsed as it stands.
        if sight.part(end - 1, end) != b"\\":
            yield at, end
            at = end + 1


class _Sight:
    """A file seen through one piece at a time."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._piece = b""

    def find(self, what: bytes, at: int) -> int:
        """Where it stands next, from ``at`` on; -1 if it does not."""
        while at < self._size:
            self._move_to(at)
            place = self._piece.find(what, at - self._start)
            if place >= 0:
                return self._start + place
            end = self._start + len(self._piece)
            if end == self._size:
                break
            at = max(at + 1, end - len(what) + 1)
        return -1

    def part(self, start: int, end: int) -> bytes:
        """The bytes there, as far as the file goes."""
        end = min(end, self._size)
        if self._start <= start and end <= self._start + len(self._piece):
            return self._piece[start - self._start : end - self._start]
        return self._read(start, max(end - start, 0))

    def _move_to(self, at: int) -> None:
        """Have the piece hold what begins at ``at``, with enough behind it."""
        if not self._start <= at < self._start + len(self._piece) - len(_KEY):
            self._start = at
            self._piece = self._read(at, min(_PIECE, self._size - at))
