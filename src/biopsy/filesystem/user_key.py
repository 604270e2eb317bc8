"""A secret of this user: by it we know again in a later process what we wrote in an earlier one.

Whatever else a file of ours says of itself, such as digests and versions, anybody can work out and write too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from biopsy.filesystem.own_file import open_locked

_SIZE = 32
_PATIENCE = 2.0
"""Seconds to wait for another process that looks at the key, or makes it."""


def user_key() -> bytes | None:
    """Random bytes that this user alone can read, made when they are first asked for; None if that cannot be.

    They stand in ``$XDG_STATE_HOME/biopsy/key``, or else below ``~/.local/state``. Anything there but a plain file of
    this user that nobody else can read, with one name and as many bytes, is no key, and stays as it is.
    """
    folder = _folder()
    if folder is None:
        return None
    with contextlib.suppress(OSError):
        _require_private(folder)
        descriptor = open_locked(folder / "key", _PATIENCE)
        try:
            return _made(descriptor) if os.fstat(descriptor).st_size == 0 else _read(descriptor)
        finally:
            os.close(descriptor)
    return None


def _folder() -> Path | None:
    """Where the key is to stand. Never below the current folder, which may be anybody's."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):  # noqa: PTH117 -- a word
        return Path(given) / "biopsy"
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or "")
    return home / ".local" / "state" / "biopsy" if home.is_absolute() and home.is_dir() else None


def _require_private(folder: Path) -> None:
    """Make a folder, if need be, in one of ours. Raises OSError if that cannot be, or if others may write there."""
    missing, there = [], folder
    while not there.exists():
        missing.append(there)
        there = there.parent
    if missing and not _is_ours(there.stat()):  # as root in the home of somebody: it would be in the way for ever
        raise PermissionError
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if not _is_ours(status) or (_has_modes() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError


def _made(descriptor: int) -> bytes | None:
    """A new key, in the file when this returns. One that was killed before leaves an empty file, or none."""
    key = os.urandom(_SIZE)
    if os.write(descriptor, key) != _SIZE:
        os.ftruncate(descriptor, 0)
        return None
    os.fsync(descriptor)
    return key


def _read(descriptor: int) -> bytes | None:
    if _has_modes() and os.fstat(descriptor).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    key = os.read(descriptor, _SIZE + 1)
    return key if len(key) == _SIZE else None


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _has_modes() -> bool:
    return hasattr(os, "fchmod") and os.name == "posix"
