"""Writing files whole or not at all, with the folders that they need, and no more public than what they were made
of.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
"""As ``open`` has it: the umask takes away from it."""

_PATIENCE = 8.0
"""Seconds to wait for a reader of a pipe: a shell starts one at the same time, and one that was planted has none."""
_LITTLE_PATIENCE = 0.5
"""Once nobody has come to read from one, who would from the next? Nor would a folder full of them be waited for."""
_unread: set[Path] = set()

_COPIED_AT_ONCE = 1 << 20


def write_whole(path: Path, parts: Iterable[bytes | bytearray | memoryview], *, transient: bool = False) -> None:
    """Write ``parts`` one after the other to ``path``, replacing what stood there in one step.

    A link is replaced too, and not followed. What is no file, such as a pipe or /dev/null, is written to as it is.
    Folders that are missing are made. ``transient``: it is to go with this process, and is removed if that is killed,
    unless something else stands there by then; ``cleanup.keep`` ends that.

    Raises UsageError if the folder cannot be made or written, or if nobody reads from the pipe; what stood at ``path``
    is then untouched.
    """
    try:
        with _stream_into(path, transient=transient) as stream:
            stream.writelines(parts)
    except OSError as error:
        raise cannot_write(path, error) from error


def copy_transient(source: Path, path: Path) -> None:
    """Copy a file to one that is to go with this process. Raises UsageError if that cannot be done."""
    try:
        with source.open("rb") as stream:
            write_whole(path, iter(lambda: stream.read(_COPIED_AT_ONCE), b""), transient=True)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextlib.contextmanager
def _stream_into(path: Path, *, transient: bool = False) -> Iterator[BinaryIO]:
    """What is written there goes to ``path``: into what is no file, else into one that takes its place at the end."""
    if _is_stream(path):
        with os.fdopen(_opened_stream(path), "wb") as stream:
            yield stream
    else:
        with folders_of(path), _replacement(path, transient=transient) as stream:
            yield stream


def open_anew(path: Path) -> BinaryIO:
    """A stream into a file that takes the place of what stands at ``path`` at once, for who reads along.

    What is no file is written to as it is. Raises UsageError as ``write_whole`` does.
    """
    try:
        with _stream_into(path) as stream:
            return os.fdopen(os.dup(stream.fileno()), "wb")
    except OSError as error:
        raise cannot_write(path, error) from error


def create_new(path: Path) -> BinaryIO:
    """A file where nothing stands yet, not even a link. Raises FileExistsError if something does, or OSError."""
    return os.fdopen(os.open(path, _NEW, _FOR_ALL), "w+b")


@contextlib.contextmanager
def _replacement(path: Path, *, transient: bool) -> Iterator[BinaryIO]:
    """A file under a name of its own that takes the place of ``path`` at the end; nothing stays if that fails."""
    temporary = _temporary_name(path)
    is_listed = transient or cleanup.watches()
    with cleanup.about_to_make(temporary) if is_listed else contextlib.nullcontext():
        stream = create_new(temporary)
        if is_listed:  # it goes with this process if that is killed, from here or from ``path``
            cleanup.take_along(os.fstat(stream.fileno()), (path if transient else temporary), temporary)
    try:
        with stream:
            yield stream
        temporary.replace(path)
        if transient:
            cleanup.replaced(path)
    except BaseException:
        with contextlib.suppress(OSError):  # a read-only file system refuses even what is not there
            temporary.unlink(missing_ok=True)
        raise
    finally:
        if not transient:
            cleanup.keep(temporary)


def _temporary_name(path: Path) -> Path:
    """A name beside ``path`` that nobody could have put something at."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")


def _is_stream(path: Path) -> bool:
    """Whether this is written to as it is: a pipe, a device, or a link of the system's own to whatever is open."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            # Such as /dev/stdout and /dev/fd/N, which no folder of anybody's can hold.
            folder = path.parent.resolve().parts
            is_of_the_system = folder == ("/", "dev") or (folder[:2] == ("/", "proc") and folder[-1] == "fd")
            return is_of_the_system and not path.is_dir()
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _opened_stream(path: Path) -> int:
    """The descriptor of a stream. Raises OSError, also if it is a pipe that nobody begins to read."""
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
    """The error that tells why ``path`` cannot be written."""
    if not path.parent.is_dir():
        why = error.strerror or error
        return errors.UsageError(f"cannot write {path}: the folder {path.parent} cannot be made: {why}")
    return errors.UsageError(f"cannot write {path}: {error.strerror or error}")


def require_writable(path: Path) -> None:
    """Raise UsageError now if ``path`` could not be written later, at the end of long work.

    Folders that are missing are not made yet.
    """
    if path.is_dir():
        raise errors.UsageError(f"cannot write {path}: it is a directory")
    if _is_stream(path):
        return
    try:
        probe = nearest_folder(path) / _temporary_name(path).name
        create_new(probe).close()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def written_together(path: Path) -> Iterator[Path]:
    """A path in a fresh folder beside ``path``; what is written there, weights beside it too, replaces what is here.

    Raises UsageError if it cannot be written. If what stands inside fails or crashes, nothing of it is left. A link is
    replaced, not followed; folders that are missing are made.
    """
    try:
        with folders_of(path), temporary_folder(f".{path.name}.", path.parent.resolve()) as scratch:
            yield scratch / path.name
            for made in sorted(scratch.iterdir(), key=lambda made: made.name == path.name):  # the model last
                made.replace(path.parent / made.name)
    except OSError as error:
        raise cannot_write(path, error) from error


# Folders that are missing: made when a file is written into them, and gone again if that fails.
#
# Each is made as ``mkdir`` makes it, with the mode that the umask leaves. None is made through a link that leads
# nowhere, nor where something else appears meanwhile.


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
    nearest = nearest_folder(path)
    missing = [*takewhile(lambda folder: folder != nearest, path.parents)]
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


# What is made of a file is no more public than the file: a result holds what is in the model.

_GROUP, _OTHERS = 0o070, 0o007


@contextlib.contextmanager
def as_private_as(paths: Iterable[Path]) -> Iterator[None]:
    """While it lasts, whatever is written gives the group and others no more than each of these files gives them.

    That holds for all files of this process and of those that it starts, such as checks and engines: it is the umask
    that is narrowed. What is no plain file, or is not there, narrows nothing.
    """
    mask = reduce(or_, map(_mask_of, paths), 0)
    _umask.change(more=[mask])
    try:
        yield
    finally:
        _umask.change(less=[mask])


@contextlib.contextmanager
def as_private_as_what_is_read(paths: Iterable[Path]) -> Iterator[None]:
    """``as_private_as`` these files, and as each one that ``is_read`` tells of while it lasts."""
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
    """Have what is written from now on be as private as a file, to the end of ``as_private_as_what_is_read``.

    For files that no option names, such as the weights of a model. Outside of such a block nothing is changed.
    """
    mask = _mask_of(path) if _umask.readers else 0
    if mask and mask not in _umask.read:
        _umask.read.append(mask)
        _umask.change(more=[mask])


def _mask_of(path: Path) -> int:
    """The bits of a umask for what a file does not grant; 0 for what is no plain file, or is not there."""
    with contextlib.suppress(OSError, ValueError):
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
    """Take from a file that stood there already what a new one would not give to the group and others."""
    if not hasattr(os, "fchmod"):
        return
    umask = os.umask(_GROUP | _OTHERS)
    os.umask(umask)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & umask & (_GROUP | _OTHERS):
        os.fchmod(descriptor, mode & ~(umask & (_GROUP | _OTHERS)))


class _Umask:
    """The umask of this process while several may want it narrower: the caller's comes back with the last of them.

    ``readers`` blocks want it narrower for each file that is read, which the masks ``read`` are for.
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
