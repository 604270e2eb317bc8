"""The call of an engine that this process made last, for whoever has to tell of its death: which engine, and for what.

It stands in memory that is shared with the process that watches this one (``supervised``), so it outlives a crash.
Where nobody watches, nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

SIZE = 4096
"""Bytes of the shared memory."""

_DONE, _STATUS, _OPEN, _LENGTH, _TEXT = 0, 1, 2, slice(3, 5), 5
_MOST = SIZE - _TEXT

_shared: list[mmap] = []
"""The memory, if there is any."""


class LastCall(NamedTuple):
    """The call that was made last; ``is_open``: the engine had not answered yet."""

    engine: str
    stage: str
    description: str
    is_open: bool


class EngineCall:
    """While an engine is called: ``with EngineCall(label, "build", "it built the model"):``.

    An engine that calls another is the one that counts.
    """

    def __init__(self, engine: str, stage: str, description: str) -> None:
        self._text = "\0".join((engine, stage, description))
        self._is_outermost = False

    def __enter__(self) -> None:
        if not _shared or _shared[0][_OPEN]:
            return
        self._is_outermost, page = True, _shared[0]
        data = self._text.encode("utf-8", "replace")[:_MOST]
        page[_TEXT : _TEXT + len(data)] = data
        page[_LENGTH] = len(data).to_bytes(2, "little")
        page[_OPEN] = 1

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            _shared[0][_OPEN] = 0


def is_watched() -> bool:
    """Whether a process watches this one, and will tell of its death."""
    return bool(_shared)


def share(page: mmap) -> None:
    """Tell from now on, into this page."""
    _shared[:] = [page]


def finish(page: mmap, status: int) -> None:
    """Tell that the task is done, and its exit status: what ends the process after that spoils nothing."""
    page[_STATUS] = status & 0xFF
    page[_DONE] = 1


def finished(page: mmap) -> int | None:
    """The exit status of a task that was done to its end, else None."""
    return page[_STATUS] if page[_DONE] else None


def last_call(page: mmap) -> LastCall | None:
    """The call that the process made last; None if it called no engine."""
    data = page[_TEXT : _TEXT + int.from_bytes(page[_LENGTH], "little")]
    words = data.decode("utf-8", "replace").split("\0")
    return LastCall(words[0], words[1], words[2], bool(page[_OPEN])) if len(words) == 3 else None
