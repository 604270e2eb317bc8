"""What a child process prints: the pipe it prints into, and the bounded part of it that is kept."""

from __future__ import annotations

import os

KEPT_OUTPUT = 8 << 20
"""Bytes of the beginning, and as many of the end, of what a process prints that are kept."""


class Pipe:
    """A pipe that a child prints into: ``reading`` is ours and never blocks, ``writing`` is handed on."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reading)
        self.handed_on()

    def handed_on(self) -> None:
        """Close the end to write: the child has its own by now."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


class KeptOutput:
    """The first and the last ``size`` bytes of what was printed; ``seen`` counts all of them."""

    def __init__(self, size: int = KEPT_OUTPUT) -> None:
        self.seen = 0
        self._size = size
        self._start = bytearray()
        self._end = bytearray()

    def add(self, data: bytes) -> None:
        """Take what was printed next."""
        self.seen += len(data)
        room = self._size - len(self._start)
        self._start += data[:room]
        self._end += data[room:] if room > 0 else data
        if len(self._end) > 2 * self._size:
            del self._end[: -self._size]

    def all(self) -> bytes:
        """What is kept; a line says where something was cut."""
        if self.seen <= len(self._start) + self._size:
            return bytes(self._start + self._end)
        return bytes(self._start) + b"\n[... cut by biopsy ...]\n" + bytes(self._end[-self._size :])
