"""The files of a result: written, and written again if somebody removes or changes them before the end."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable
from pathlib import Path

from biopsy import errors, events
from biopsy.reduction.result import Target

_Stamp = tuple[int, int, int]


class ResultFile:
    """``write`` writes the files of ``target``, each whole; not all of them need come to be."""

    def __init__(self, target: Target, write: Callable[[], None], listener: events.Listener) -> None:
        self._paths = [path for path in target.files if path not in target.streams]
        self._write = write
        self._listener = listener
        self._stamps: dict[Path, _Stamp] = {}

    def write(self) -> None:
        """Write them. Raises UsageError if that cannot be done."""
        self._write()
        found = {path: _stamp(path) for path in self._paths}
        self._stamps = {path: stamp for path, stamp in found.items() if stamp is not None}

    def restore(self) -> None:
        """Write them again, and say so, if one is not as it was left: a check may remove whatever it finds."""
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        if not changed:
            return
        self.write()
        names = ", ".join(map(str, changed))
        text = f"{names} was removed or changed meanwhile, by the check or another program: it was written again"
        self._listener(events.Remark(text, warning=True))


def make_room(path: Path) -> None:
    """Remove what a check has put in the place of a file that is to be written, if nothing can be lost with it.

    It would be written into, or wait for a reader that never comes. A folder that holds something stays.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.rmdir()
        elif not (path.is_file() or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            path.unlink()


def _stamp(path: Path) -> _Stamp | None:
    """What tells whether a plain file is still the one that was written; None for what is no plain file."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def size_of(path: Path) -> int:
    """Bytes of a result. Raises CheckError if it has gone since."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise errors.CheckError(f"{path} was written, and cannot be found any more: {error.strerror}") from error
