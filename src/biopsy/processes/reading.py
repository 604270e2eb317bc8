"""Reads files of unknown origin without hanging or filling the memory, and finds files that a wrong name may mean."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from biopsy.text import ask_for, line_of, similar

NEVER_WAITS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags of ``os.open`` that never wait, whatever is at the path, and keep the descriptor from child processes."""
NEVER_FOLLOWS = NEVER_WAITS | getattr(os, "O_NOFOLLOW", 0)
"""The same, but a symbolic link is refused with ELOOP."""

_PATIENCE = 2.0


class FileState(NamedTuple):
    """The state of a file, which changes when it is written to or replaced. ``size`` is in bytes."""

    size: int
    modified: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The state in the result of ``stat``."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


def state_at(path: Path) -> FileState | None:
    """The state of the file at a path; None if there is none."""
    try:
        return FileState.of(path.stat())
    except OSError:
        return None


def open_plain(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a plain file to read. ``follow``: also through a symbolic link, since the user named it.

    Raises OSError, with a readable ``strerror``, for anything else, without waiting for it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | (NEVER_WAITS if follow else NEVER_FOLLOWS))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def open_delivering(path: Path) -> BinaryIO:
    """Open a plain file, or a pipe that someone writes into, such as ``<(command)`` of a shell and /dev/stdin.

    Raises OSError for anything else, and for a pipe without a writer after two seconds: a pipe in a folder may be
    there to make us wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | NEVER_WAITS)
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            name = "folder" if stat.S_ISDIR(kind) else "device"
            raise OSError(errno.EINVAL, f"it is a {name}, not a file", str(path))
        beginning, patience = b"", time.monotonic() + _PATIENCE
        while stat.S_ISFIFO(kind) and not beginning:  # wait for the first byte as long as there is a writer
            try:
                beginning = os.read(descriptor, 1)
            except BlockingIOError:  # a writer has it open, and has not written yet
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
    """The bytes of a plain file that the user named, of any size. Raises OSError as ``open_plain``."""
    with open_plain(path, follow=True) as stream:
        return stream.read()


def read_plain(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The bytes of a plain file of at most ``most`` bytes, a multiple of 1 MiB.

    Raises OSError as ``open_plain``, and if the file is larger.
    """
    with open_plain(path, follow=follow) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(most + 1) if size <= most else b""  # it may grow meanwhile
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return data


def digest_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, without weights in other files. Raises OSError."""
    import hashlib  # loads OpenSSL, which takes 5 ms

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_MOST_LOOKED_AT = 10_000


def files_meant(path: Path, suffixes: Collection[str] = (), plural: str = "") -> list[str]:
    """Next steps for a file that is missing: the files that ``path`` may mean, else some files with these suffixes.

    There is always one: if there are none of them, a line that looks further. ``plural`` is a name for such files. By
    default, they are those with the suffix of ``path``.
    """
    suffixes = suffixes or (path.suffix,)
    plural = plural or (f"files named *{path.suffix}" if path.suffix else "files without an ending")
    folder = path.parent
    if not folder.is_dir():
        try:
            with os.scandir(folder.parent) as entries:
                names = [entry.name for entry in islice(entries, _MOST_LOOKED_AT) if entry.is_dir()]
        except OSError:
            names = []
        meant = [folder.parent / name / path.name for name in similar(folder.name, sorted(names), most=1, cutoff=0.6)]
        return [*ask_for([str(file) for file in meant if file.exists()]), f"there is no folder {folder}"]
    near = similar_files(path, suffixes)
    if near:
        return ask_for([str(file) for file in near])
    others = _files(folder, suffixes)[:5]
    if others:
        return [f"{plural} there: {', '.join(map(str, others))}"]
    place = f"./{folder}" if str(folder).startswith("-") else str(folder)  # no program takes it for an option
    patterns = [word for suffix in suffixes if suffix for word in ("-o", "-name", f"*{suffix}")][1:]
    line = line_of(["find", place, *patterns] if patterns else ["ls", place])
    return [f"{line}    there are no {plural} in that folder itself"]


def similar_files(path: Path, suffixes: Collection[str]) -> list[Path]:
    """The files with these suffixes beside ``path`` that have similar names."""
    files = _files(path.parent, suffixes)
    stems = similar(path.stem, {file.stem: None for file in files}, most=2, cutoff=0.6)
    return [file for stem in stems for file in files if file.stem == stem]


def _files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, _MOST_LOOKED_AT) if entry.is_file())
    except OSError:
        return []
    files = [folder / name for name in names if not name.startswith(".")]
    return [file for file in files if file.suffix.lower() in suffixes]
