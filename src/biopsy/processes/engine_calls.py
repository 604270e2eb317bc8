"""The last call of an engine, on a page that outlives the process: whoever watches it knows which engine ended it."""

from __future__ import annotations

import os
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from biopsy.processes.reading import read_plain
from biopsy.processes.reaper import VERDICT_VARIABLE

SIZE = 4096
"""Bytes of the memory that is shared with the process that watches this one, so that the last call of an engine is
known after a crash. For a check, it is a file beside the verdict file, which whoever starts the check makes."""

_DONE, _STATUS, _OPEN, _LENGTH, _PID, _TEXT = 0, 1, 2, slice(3, 5), slice(5, 9), 9
_MOST = SIZE - _TEXT

CALLS = ".calls"
"""What is added to the path of the verdict file to get that of the page."""

_shared: list[mmap] = []
"""The memory shared with the process that supervises this one; empty if none does."""
_of_check: dict[str, mmap] = {}
"""The memory of the check that this process runs, by the path of its verdict file; it has at most one entry."""


class LastCall(NamedTuple):
    """The last call of an engine by the process ``pid``; ``is_open``: the engine has not returned."""

    engine: str
    stage: str
    description: str
    is_open: bool
    pid: int


class EngineCall:
    """Records the call of an engine: ``with EngineCall(label, "build", "it built the model"):``.

    If an engine calls another one, only the outer call is recorded.
    """

    def __init__(self, engine: str, stage: str, description: str) -> None:
        self._text = "\0".join((engine, stage, description))
        self._page: mmap | None = None

    def __enter__(self) -> None:
        page, pid = _page(), os.getpid().to_bytes(4, "little")
        if page is None or (page[_OPEN] and page[_PID] == pid):
            return
        self._page = page
        page[_OPEN] = 0  # of a process that died, whose page this one has
        data = self._text.encode("utf-8", "replace")[:_MOST]
        page[_TEXT : _TEXT + len(data)] = data
        page[_LENGTH] = len(data).to_bytes(2, "little")
        page[_PID] = pid
        page[_OPEN] = 1

    def __exit__(self, *_: object) -> None:
        if self._page is not None:
            self._page[_OPEN] = 0


def _page() -> mmap | None:
    """The memory in which calls are recorded; None if nobody will read it."""
    path = os.environ.get(VERDICT_VARIABLE)
    if _shared or not path:
        return _shared[0] if _shared else None
    if getattr(os, "getpgrp", os.getpid)() != os.getpid():
        return None  # a process that a check has started, whose death does not end the check
    if path not in _of_check:
        _of_check.clear()
        with suppress(OSError, ValueError):  # nobody has made the file, or it is too short
            descriptor = os.open(f"{path}{CALLS}", os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                _of_check[path] = mmap(descriptor, SIZE)
            finally:
                os.close(descriptor)
    return _of_check.get(path)


def is_watched() -> bool:
    """Whether a process watches this one, and will report its death."""
    return bool(_shared)


def share(page: mmap) -> None:
    """Record calls in this page from now on."""
    _shared[:] = [page]


def finish(page: mmap, status: int) -> None:
    """Record that the task is done, with its exit status: a later crash of the process does not matter."""
    page[_STATUS] = status & 0xFF
    page[_DONE] = 1


def finished(page: mmap) -> int | None:
    """The exit status of a task that is done, else None."""
    return page[_STATUS] if page[_DONE] else None


def last_call(page: mmap | bytes) -> LastCall | None:
    """The last call of an engine by the process; None if there was none."""
    data = page[_TEXT : _TEXT + int.from_bytes(page[_LENGTH], "little")]
    words = data.decode("utf-8", "replace").split("\0")
    pid = int.from_bytes(page[_PID], "little")
    return LastCall(words[0], words[1], words[2], bool(page[_OPEN]), pid) if len(words) == 3 else None


def make_page_of_calls(verdict: Path) -> None:
    """Make the file in which a check records its calls of engines; without space for it, it records none.

    It is written, since a file with holes would turn a full disk into a signal in the check.
    """
    with suppress(OSError):
        Path(f"{verdict}{CALLS}").write_bytes(bytes(SIZE))


def open_call(verdict: Path, pid: int) -> LastCall | None:
    """The call of an engine during which the process ``pid`` of a check ended; None if it was in none."""
    try:
        page = read_plain(Path(f"{verdict}{CALLS}"), SIZE)
    except OSError:
        return None
    call = last_call(page) if len(page) == SIZE else None
    return call if call is not None and call.is_open and call.pid == pid else None
