"""The file of ``--events``: what long work tells about itself, as JSON lines."""

from __future__ import annotations

import contextlib
import io
import json
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TextIO

from biopsy import events
from biopsy.filesystem.write import cannot_write, open_anew

_MOST_BYTES_LOGGED = 1 << 16
"""Of one output: there are as many as checks, and some checks print gigabytes."""


class EventLog:
    """The file of ``--events``: one JSON object a line; nothing if ``path`` is None.

    Each says when it was written: seconds since ``started`` (by ``time.monotonic``), or since now.
    """

    def __init__(self, path: Path | None, started: float | None = None) -> None:
        self._path = path
        self._started = time.monotonic() if started is None else started
        self._stream: TextIO | None = None

    def __enter__(self) -> EventLog:
        """Raises UsageError if the file cannot be written."""
        if self._path is not None:
            self._stream = io.TextIOWrapper(open_anew(self._path), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # what could not be written was told of then
                self._stream.close()

    def write(self, event: events.Event) -> None:
        """Write one event, at once, so that who follows the file sees it."""
        if self._stream is None or self._path is None:
            return
        plain = {
            key: _cut(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
            for key, value in asdict(event).items()
        }
        try:
            at = round(time.monotonic() - self._started, 4)
            self._stream.write(json.dumps({"event": event.kind, "at": at, **plain}) + "\n")
            self._stream.flush()
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _cut(output: bytes) -> bytes:
    """An output without its middle if it is long."""
    if len(output) <= _MOST_BYTES_LOGGED:
        return output
    half = _MOST_BYTES_LOGGED // 2
    return output[:half] + b"\n[... cut by biopsy ...]\n" + output[-half:]
