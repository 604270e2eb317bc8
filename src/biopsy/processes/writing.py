"""Writes files completely or not at all, with the folders that they need, and no more public than their sources."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import reduce
from itertools import takewhile
from operator import or_
from pathlib import Path
from typing import BinaryIO

from biopsy import errors
from biopsy.processes import cleanup
from biopsy.processes.cleanup import temporary_folder

_NEW = (
    os.O_RDWR
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_FOR_ALL = 0o666
"""The mode that ``open`` uses, too, and that the umask reduces."""

_PATIENCE = 8.0
"""Seconds to wait for a reader of a pipe: a shell starts it at the same time, but a planted pipe has none."""
_LITTLE_PATIENCE = 0.5
"""The same after a pipe had no reader, so that a folder full of planted pipes does not take long."""
_unread: set[Path] = set()

_COPIED_AT_ONCE = 1 << 20


def write_whole(path: Path, parts: Iterable[bytes | bytearray | memoryview], *, transient: bool = False) -> None:
    """Write ``parts`` one after the other to ``path``, replacing an existing file in one step.

    A link is replaced, not followed. A pipe or device, such as /dev/null, is written to. Missing folders are made.
    ``transient``: the file is removed if this process is killed, unless another file has replaced it; ``cleanup.keep``
    ends that.

    Raises UsageError if the folder cannot be made or written, or if nothing reads from the pipe; an existing file is
    then not changed.
    """
    with writing_to(path), _stream_into(path, transient=transient) as stream:
        stream.writelines(parts)


def copy_transient(source: Path, path: Path) -> None:
    """Copy a file to a transient one (see ``write_whole``). Raises UsageError."""
    with writing_to(path), source.open("rb") as stream:
        write_whole(path, iter(lambda: stream.read(_COPIED_AT_ONCE), b""), transient=True)


@contextmanager
def _stream_into(path: Path, *, transient: bool = False) -> Iterator[BinaryIO]:
    """A stream to a pipe or device at ``path``, else into a file that takes the place of ``path`` at the end."""
    if _is_stream(path):
        with os.fdopen(_opened_stream(path), "wb") as stream:
            yield stream
    else:
        with folders_of(path), _replacement(path, transient=transient) as stream:
            yield stream


def open_anew(path: Path) -> BinaryIO:
    """A stream into a new file that takes the place of ``path`` at once, so that others can read along.

    A pipe or device is written to. Raises UsageError as ``write_whole``.
    """
    with writing_to(path), _stream_into(path) as stream:
        return os.fdopen(os.dup(stream.fileno()), "wb")


def create_new(path: Path) -> BinaryIO:
    """Create a file where there is nothing yet, not even a link. Raises FileExistsError and OSError."""
    return os.fdopen(os.open(path, _NEW, _FOR_ALL), "w+b")


@contextmanager
def _replacement(path: Path, *, transient: bool) -> Iterator[BinaryIO]:
    """A file with a random name that takes the place of ``path`` at the end; it is removed if something is raised."""
    temporary = _temporary_name(path)
    is_listed = transient or cleanup.watches()
    with cleanup.about_to_make(temporary) if is_listed else nullcontext():
        stream = create_new(temporary)
        if is_listed:  # to be removed, here or at ``path``, if this process is killed
            cleanup.mark_transient(os.fstat(stream.fileno()), (path if transient else temporary), temporary)
    try:
        with stream:
            yield stream
        temporary.replace(path)
        if transient:
            cleanup.replaced(path)
    except BaseException:
        with suppress(OSError):  # a read-only file system raises even if the file does not exist
            temporary.unlink(missing_ok=True)
        raise
    finally:
        if not transient:
            cleanup.keep(temporary)


def _temporary_name(path: Path) -> Path:
    """A random name beside ``path``, at which nobody could have put something."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")


def _is_stream(path: Path) -> bool:
    """Whether to write to the thing at ``path`` itself: a pipe, a device, or a system's link to an open file."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            # A link such as /dev/stdout or /dev/fd/N, which no user can make there.
            folder = path.parent.resolve().parts
            is_system_link = folder == ("/", "dev") or (folder[:2] == ("/", "proc") and folder[-1] == "fd")
            return is_system_link and not path.is_dir()
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _opened_stream(path: Path) -> int:
    """The descriptor of a stream. Raises OSError, also for a pipe that nothing begins to read."""
    end = time.monotonic() + (_LITTLE_PATIENCE if _unread else _PATIENCE)
    flags = os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        try:
            descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
            os.set_blocking(descriptor, True)
            return descriptor
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > end:
                _unread.add(path)
                raise OSError(errno.ENXIO, "it is a pipe, and nobody reads from it", str(path)) from error
        time.sleep(0.02)


def cannot_write(path: Path, error: OSError) -> errors.UsageError:
    """The UsageError for a ``path`` that cannot be written."""
    if not path.parent.is_dir():
        reason = error.strerror or error
        return errors.UsageError(f"cannot write {path}: the folder {path.parent} cannot be made: {reason}")
    return errors.UsageError(f"cannot write {path}: {error.strerror or error}")


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """An OSError meanwhile becomes the UsageError of ``cannot_write``."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def require_writable(path: Path) -> None:
    """Raise UsageError, before long work, if ``path`` could not be written after it. Missing folders are not made."""
    if path.is_dir():
        raise errors.UsageError(f"cannot write {path}: it is a directory")
    if _is_stream(path):
        return
    with writing_to(path):
        probe = nearest_folder(path) / _temporary_name(path).name
        create_new(probe).close()
        probe.unlink()


@contextmanager
def written_together(path: Path) -> Iterator[Path]:
    """A path in a new folder beside ``path``; all files written there, such as weights, replace those beside ``path``.

    Raises UsageError if they cannot be written. Nothing is replaced if something is raised or crashes meanwhile. A link
    is replaced, not followed; missing folders are made.
    """
    with writing_to(path), folders_of(path), temporary_folder(f".{path.name}.", path.parent.resolve()) as scratch:
        yield scratch / path.name
        for file in sorted(scratch.iterdir(), key=lambda file: file.name == path.name):  # the model last
            file.replace(path.parent / file.name)


def nearest_folder(path: Path) -> Path:
    """The innermost existing folder around ``path``. Raises OSError if no folder can be made in it."""
    folder = path.parent
    while not folder.exists():
        if folder.is_symlink():
            raise OSError(errno.ELOOP, f"{folder} is a link that leads nowhere", str(folder))
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder", str(folder))
    return folder


def make_folders_of(path: Path) -> list[Path]:
    """Make the missing folders around ``path``; returns them, the outermost first.

    Raises OSError if one cannot be made, and removes the others. None is made through a dangling link.
    """
    nearest = nearest_folder(path)
    missing = [*takewhile(lambda folder: folder != nearest, path.parents)]
    created: list[Path] = []
    try:
        for folder in reversed(missing):
            try:
                folder.mkdir()
                created.append(folder)
            except FileExistsError:  # another process has made it
                if folder.is_symlink() or not folder.is_dir():
                    raise
    except OSError:
        remove_empty(created)
        raise
    return created


@contextmanager
def folders_of(path: Path) -> Iterator[None]:
    """Make the missing folders around ``path``, and remove them if something is raised inside."""
    created = make_folders_of(path)
    try:
        yield
    except BaseException:
        remove_empty(created)
        raise


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, listed from the outermost on, unless they have content."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


_GROUP, _OTHERS = 0o070, 0o007


@contextmanager
def as_private_as(paths: Iterable[Path]) -> Iterator[None]:
    """Meanwhile, give the group and others no more rights to new files than each of these files gives them.

    A result contains what is in the model, so it must not be more public. This narrows the umask, and so holds for all
    files of this process and of those that it starts, such as checks and engines. Missing files and anything but plain
    files are ignored.
    """
    mask = reduce(or_, map(_mask_of, paths), 0)
    _umask.change(more=[mask])
    try:
        yield
    finally:
        _umask.change(less=[mask])


@contextmanager
def as_private_as_what_is_read(paths: Iterable[Path]) -> Iterator[None]:
    """``as_private_as`` these files and all files that are passed to ``is_read`` meanwhile."""
    _umask.readers += 1
    try:
        with as_private_as(paths):
            yield
    finally:
        _umask.readers -= 1
        if _umask.readers == 0:
            _umask.change(less=_umask.read)
            _umask.read = []


def is_read(path: Path) -> None:
    """Make later files as private as this one, until the end of ``as_private_as_what_is_read``; nothing outside of it.

    This is for files that no option names, such as the weights of a model.
    """
    mask = _mask_of(path) if _umask.readers else 0
    if mask and mask not in _umask.read:
        _umask.read.append(mask)
        _umask.change(more=[mask])


def _mask_of(path: Path) -> int:
    """The umask for the rights that a file does not give; 0 for a missing file and anything but a plain file."""
    with suppress(OSError, ValueError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            mode = status.st_mode
            return (
                (~mode & 0o022)
                | (0 if mode & stat.S_IRGRP else _GROUP)
                | (0 if mode & stat.S_IROTH else _OTHERS)
            )  # fmt: skip
    return 0


def make_as_private_as_new(descriptor: int) -> None:
    """Remove those rights of the group and others to an existing file that a new file would not have."""
    if not hasattr(os, "fchmod"):
        return
    umask = os.umask(_GROUP | _OTHERS)
    os.umask(umask)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & umask & (_GROUP | _OTHERS):
        os.fchmod(descriptor, mode & ~(umask & (_GROUP | _OTHERS)))


class _Umask:
    """Narrows the umask of this process for several blocks; after the last of them, the original one is restored.

    ``readers`` counts the blocks of ``as_private_as_what_is_read``; ``read`` has the masks of the files read in them.
    """

    def __init__(self) -> None:
        self.readers = 0
        self.read: list[int] = []
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before = 0

    def change(self, *, more: Sequence[int] = (), less: Sequence[int] = ()) -> None:
        with self._lock:
            if more and not self._wanted:
                self._before = os.umask(_GROUP | _OTHERS)
            self._wanted += more
            for mask in less:
                self._wanted.remove(mask)
            if more or less:
                os.umask(reduce(or_, self._wanted, self._before))


_umask = _Umask()
