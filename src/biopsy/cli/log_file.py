"""The file of ``--log-file``: the lines that are shown, without colours."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from biopsy.filesystem.write import open_anew

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class LogFile:
    """A file that gets each line as it is shown. Raises UsageError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._stream = io.TextIOWrapper(open_anew(path), encoding="utf-8", errors="backslashreplace")

    def write(self, line: str) -> None:
        """Write one line, at once, so that who follows the file sees it. Raises OSError."""
        self._stream.write(_COLOUR.sub("", line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Write nothing more."""
        with contextlib.suppress(OSError):  # what could not be written was told of then
            self._stream.close()
