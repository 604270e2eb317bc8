"""Writing files whole or not at all: first under a temporary name in the same folder, then renamed.

The folder may be one that somebody prepared. So a temporary file is always made anew, under a name that nobody could
know, and what stands at a path is replaced, never written into: a link is replaced itself, and what it leads to stays
as it is. Only what is no file, and the system's own links such as /dev/stdout, are written to as they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from biopsy import errors
from biopsy.filesystem.folders import folders_of, nearest_folder
from biopsy.isolation import cleanup

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


def write_whole(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write ``parts`` one after the other to ``path``, replacing what stood there in one step.

    A link is replaced too, and not followed. What is no file, such as a pipe or /dev/null, is written to as it is.
    Folders that are missing are made. Raises UsageError if the folder cannot be made or written, or if nobody reads
    from the pipe; what stood at ``path`` is then untouched.
    """
    _write(path, parts, transient=False)


def write_transient(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a file that is to go with this process: as ``write_whole``, and it is removed if this process is killed.

    Unless something else stands there by then; ``cleanup.keep`` ends that.
    """
    _write(path, parts, transient=True)


def copy_transient(source: Path, path: Path) -> None:
    """Copy a file to one that is to go with this process, see ``write_transient``. Raises as that does."""
    try:
        with source.open("rb") as stream:
            write_transient(path, iter(lambda: stream.read(_COPIED_AT_ONCE), b""))
    except OSError as error:
        raise cannot_write(path, error) from error


def _write(path: Path, parts: Iterable[bytes | bytearray | memoryview], *, transient: bool) -> None:
    try:
        if _is_stream(path):
            with os.fdopen(_opened_stream(path), "wb") as stream:
                stream.writelines(parts)
            return
        with folders_of(path), _replacement(path, transient=transient) as stream:
            stream.writelines(parts)
    except OSError as error:
        raise cannot_write(path, error) from error


def open_anew(path: Path) -> BinaryIO:
    """A stream into a file that takes the place of what stands at ``path`` at once, for who reads along.

    What is no file is written to as it is. Raises UsageError as ``write_whole`` does.
    """
    try:
        if _is_stream(path):
            return os.fdopen(_opened_stream(path), "wb")
        with folders_of(path), _replacement(path, transient=False) as stream:
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
    stream = _taken_along(temporary, path if transient else temporary, always=transient)
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


def _taken_along(temporary: Path, path: Path, *, always: bool) -> BinaryIO:
    """A new file at ``temporary`` that goes with this process, here or at ``path``, if it is killed.

    Unless it is ``always`` to, only where somebody watches already.
    """
    if not always and not cleanup.watches():
        return create_new(temporary)
    with cleanup.about_to_make(temporary):
        stream = create_new(temporary)
        cleanup.take_along(os.fstat(stream.fileno()), path, temporary)
        return stream


def _temporary_name(path: Path) -> Path:
    """A name beside ``path`` that nobody could have put something at."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")


def _is_stream(path: Path) -> bool:
    """Whether this is written to as it is: a pipe, a device, or a link of the system's own to whatever is open."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return _is_of_the_system(path) and not path.is_dir()
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_of_the_system(link: Path) -> bool:
    """Whether a link is one of /dev/stdout, /dev/fd/N and the like, which no folder of anybody's can hold."""
    folder = link.parent.resolve().parts
    return folder == ("/", "dev") or (folder[:2] == ("/", "proc") and folder[-1] == "fd")


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
