"""Reading small files that somebody else may have written, without hanging or filling the memory, and finding files
that a wrong name may mean.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import select
import stat
import time
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from biopsy.text import ask_for, similar

NEVER_WAITS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags of ``os.open`` with which nothing that stands at a path keeps us, nor do programs that we start have it."""
NEVER_FOLLOWS = NEVER_WAITS | getattr(os, "O_NOFOLLOW", 0)
"""The same, and a symbolic link is refused with ELOOP."""

_PATIENCE = 2.0


class FileState(NamedTuple):
    """What changes when somebody writes to a file, or puts another in its place. ``size`` in bytes."""

    size: int
    modified: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The state that a call of ``stat`` tells of."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


def state_at(path: Path) -> FileState | None:
    """The state of what stands at a path; None if nothing does."""
    try:
        return FileState.of(path.stat())
    except OSError:
        return None


def open_plain(path: Path, *, follow: bool = False) -> BinaryIO:
    """A plain file, to be read. ``follow``: also one that a symbolic link leads to, since a person named it.

    Raises OSError, with words for a person as its ``strerror``, if something else stands there: nobody waits for it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | (NEVER_WAITS if follow else NEVER_FOLLOWS))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def open_delivering(path: Path) -> BinaryIO:
    """A plain file, or a pipe that somebody writes into, such as ``<(command)`` of a shell and /dev/stdin.

    Raises OSError for anything else, and for a pipe into which nobody has begun to write after two seconds: one that
    lies in a folder may have been put there in order that somebody waits for it.
    """
    descriptor = os.open(path, os.O_RDONLY | NEVER_WAITS)
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            what = "folder" if stat.S_ISDIR(kind) else "device"
            raise OSError(errno.EINVAL, f"it is a {what}, not a file", str(path))
        beginning, patience = b"", time.monotonic() + _PATIENCE
        while stat.S_ISFIFO(kind) and not beginning:  # the first byte, for as long as there is a writer
            try:
                beginning = os.read(descriptor, 1)
            except BlockingIOError:  # somebody has it open, and has not written yet
                select.select([descriptor], [], [])
                continue
            if not beginning and time.monotonic() > patience:
                raise OSError(errno.EPIPE, "it is a pipe, and nobody writes into it", str(path))
            time.sleep(0 if beginning else 0.02)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    stream = os.fdopen(descriptor, "rb")
    if not beginning:
        return stream
    with stream:
        return io.BytesIO(beginning + stream.read())


def read_whole(path: Path) -> bytes:
    """The bytes of a plain file that a person named, however many. Raises OSError as ``open_plain`` does."""
    with open_plain(path, follow=True) as stream:
        return stream.read()


def read_plain(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The bytes of a plain file of at most ``most`` bytes, which are whole MiB.

    Raises OSError as ``open_plain`` does, and if it is larger than that.
    """
    with open_plain(path, follow=follow) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(most + 1) if size <= most else b""  # it may grow meanwhile
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return data


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits; weights in other files do not count. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# Files that a person may have meant by a name that is none.

_MOST_LOOKED_AT = 10_000


def files_meant(path: Path, suffixes: Collection[str], what: str) -> list[str]:
    """What to say where nothing stands at ``path``: the files there that it may mean, else some of these suffixes.

    ``what``: what such files are called, in the plural.
    """
    folder = path.parent
    if not folder.is_dir():
        try:
            with os.scandir(folder.parent) as entries:
                names = [entry.name for entry in islice(entries, _MOST_LOOKED_AT) if entry.is_dir()]
        except OSError:
            return []
        meant = [folder.parent / name / path.name for name in similar(folder.name, sorted(names), most=1, cutoff=0.6)]
        return [*ask_for([str(file) for file in meant if file.exists()]), f"there is no folder {folder}"]
    near = similar_files(path, suffixes)
    if near:
        return ask_for([str(file) for file in near])
    others = _files(path.parent, suffixes)[:5]
    return [f"{what} there: {', '.join(map(str, others))}"] if others else []


def similar_files(path: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of these suffixes beside ``path`` whose names are like its name."""
    files = _files(path.parent, suffixes)
    stems = similar(path.stem, {file.stem: None for file in files}, most=2, cutoff=0.6)
    return [file for stem in stems for file in files if file.stem == stem]


def _files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, _MOST_LOOKED_AT))
    except OSError:
        return []
    files = [folder / name for name in names if not name.startswith(".")]
    return [file for file in files if file.suffix.lower() in suffixes]
