"""Folders of this user in which nobody else can put anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def folder_of_user(variable: str, below_home: str) -> Path | None:
    """Our folder where the user has such things: in that which an environment variable names, or below the home.

    Never below the current folder, which may be anybody's; None if there is no home.
    """
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # noqa: PTH117 -- a word
        return Path(given) / "biopsy"
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or "")
    return home / below_home / "biopsy" if home.is_absolute() and home.is_dir() else None


def make_private_folder(folder: Path, *, anywhere: bool = False) -> None:
    """Make a folder that nobody else may read, if there is none, in one of ours; one that is there stays as it is.

    ``anywhere``: in a folder of others too, since a person named it.

    Raises OSError, with words for a person as its ``strerror``, if it cannot be made, or if others may write there.
    """
    missing, there = [], folder
    while not there.exists():
        missing.append(there)
        there = there.parent
    if missing and not anywhere and not _is_ours(there.stat()):
        # As root in somebody's home: the folder would be in the owner's way for ever.
        raise PermissionError(errno.EPERM, f"{there} belongs to another user", str(folder))
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder))
    if not _is_ours(status):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if has_modes() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others may write there (chmod go-w)", str(folder))


def has_modes() -> bool:
    """Whether files tell here who may read and write them."""
    return hasattr(os, "fchmod") and os.name == "posix"


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
