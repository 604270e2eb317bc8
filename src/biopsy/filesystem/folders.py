"""Folders that are missing: made when a file is written into them, and gone again if that fails.

Each is made as ``mkdir`` makes it, with the mode that the umask leaves. None is made through a link that leads nowhere,
nor where something else appears meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


def nearest_folder(path: Path) -> Path:
    """The innermost folder around ``path`` that is there. Raises OSError if no folder can be made in it."""
    folder = path.parent
    while not folder.exists():
        if folder.is_symlink():
            raise OSError(errno.ELOOP, f"{folder} is a link that leads nowhere", str(folder))
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder", str(folder))
    return folder


def make_folders_of(path: Path) -> list[Path]:
    """Make the folders around ``path`` that are missing; returns those made, the outermost first.

    Raises OSError if one cannot be made; none of them is left then.
    """
    nearest, missing = nearest_folder(path), []
    folder = path.parent
    while folder != nearest:
        missing.append(folder)
        folder = folder.parent
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            try:
                folder.mkdir()
                made.append(folder)
            except FileExistsError:  # somebody else has made it
                if folder.is_symlink() or not folder.is_dir():
                    raise
    except OSError:
        remove_empty(made)
        raise
    return made


@contextlib.contextmanager
def folders_of(path: Path) -> Iterator[None]:
    """The folders around ``path`` exist inside; those made for it go again if what stands inside fails."""
    made = make_folders_of(path)
    try:
        yield
    except BaseException:
        remove_empty(made)
        raise


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, the outermost first in the list, unless something stands in them by now."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
