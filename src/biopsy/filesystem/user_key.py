"""A secret of this user: by it we know again in a later process what we wrote in an earlier one.

Whatever else a file of ours says of itself, such as digests and versions, anybody can work out and write too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from biopsy.filesystem.own_file import open_locked
from biopsy.filesystem.private_folder import folder_of_user, has_modes, make_private_folder

_SIZE = 32
_PATIENCE = 2.0
"""Seconds to wait for another process that looks at the key, or makes it."""


def key_path() -> Path | None:
    """``$XDG_STATE_HOME/biopsy/key``, or else below ``~/.local/state``; None for a user without a home."""
    folder = folder_of_user("XDG_STATE_HOME", ".local/state")
    return None if folder is None else folder / "key"


def user_key() -> bytes | None:
    """Random bytes that this user alone can read, made when they are first asked for; None if that cannot be.

    They stand at ``key_path``. Anything there but a plain file of this user that nobody else can read, with one name
    and as many bytes, is no key, and stays as it is.
    """
    path = key_path()
    if path is None:
        return None
    with contextlib.suppress(OSError):
        make_private_folder(path.parent)
        descriptor = open_locked(path, _PATIENCE)
        try:
            return _made(descriptor) if os.fstat(descriptor).st_size == 0 else _read(descriptor)
        finally:
            os.close(descriptor)
    return None


def _made(descriptor: int) -> bytes | None:
    """A new key, in the file when this returns. One that was killed before leaves an empty file, or none."""
    key = os.urandom(_SIZE)
    if os.write(descriptor, key) != _SIZE:
        os.ftruncate(descriptor, 0)
        return None
    os.fsync(descriptor)
    return key


def _read(descriptor: int) -> bytes | None:
    if has_modes() and os.fstat(descriptor).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    key = os.read(descriptor, _SIZE + 1)
    return key if len(key) == _SIZE else None
