"""The file under a journal: append-only lines, each with a checksum over everything before it.

The checksums are keyed with a secret of the user (``processes/own_files.py``), so that nobody else can write a line.

A line is a flat JSON list of texts and numbers: its kind, its values, its checksum. Nothing nests, and lines and files
have a maximal size, so that a foreign file costs no more to read than ours. The first line names the format; a line
``opened`` holds the number of the process that has the file from there on.

A process that is killed leaves at most an incomplete last line, which the next process cuts off. Any other line that is
changed or in another place is damage.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from biopsy.processes.own_files import PRIVATE, lock, open_locked, require_own, stands_at, user_key
from biopsy.processes.reading import NEVER_FOLLOWS, open_plain
from biopsy.processes.writing import make_folders_of, remove_empty

VERSION = 4
"""The version of the format; the journals of versions 1 and 2 were SQLite files, and the answers in those of version 3
did not tell in which stage an engine died.
"""

Values: TypeAlias = Sequence[str | int | float | bool]
"""A line: its kind, then its values."""

_BEGINNING = b'["biopsy journal",'
_SQLITE = b"SQLite format 3\0"
_OPENED = "opened"
_OPENED_BY = re.compile(rb'\["opened",(\d{1,19}),.*')

_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NUMBER = rb"-?\d{1,19}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?"
_LINE = re.compile(rb"\[%s(?:,(?:%s|%s|true|false)){1,11}\]" % (_TEXT, _TEXT, _NUMBER), re.DOTALL)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder()

_MOST_BYTES = 256 << 20
_LONGEST_LINE = 16 << 20
_CHUNK = 1 << 20

_PATIENCE = 0.2
"""Seconds to wait for another process that has the file: if it was killed, it may be about to end."""

_SYNC_EVERY = 1.0  # seconds
_SHARE_OF_SYNCING = 0.01
"""At most this share of the time is spent waiting for the disk, however slow it is."""

_datasync = getattr(os, "fdatasync", os.fsync)


class DamagedError(Exception):
    """The file does not hold what a journal holds."""


@dataclass(frozen=True, kw_only=True)
class FileEnd:
    """The end of a file: its size in bytes, its number of lines, and the checksum of the last line."""

    size: int = 0
    lines: int = 0
    checksum: bytes = b""


class JournalFile:
    """An open file that is locked until it is closed or its process has ended.

    For one thread at a time. A fork of this process loses access.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Call ``open`` instead; ``descriptor`` holds the lock."""
        self.path = path
        self._key = user_key() or os.urandom(32)  # without the user's key, nobody can resume it
        self._descriptor = descriptor
        self._new_folders: list[Path] = []
        self.end = FileEnd()
        self._says_opened = False
        self._is_doubtful = False  # whether the file may hold more than ``end`` says, after a write that failed
        self._synced, self._sync_interval = time.monotonic(), _SYNC_EVERY
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path) -> JournalFile:
        """Open the file at ``path``, or create an empty one; nothing in it is read or changed.

        Missing folders are created. Raises InUseError, or OSError as ``open_own`` does.
        """
        folders = make_folders_of(path)
        try:
            file = cls(path, open_locked(path, _PATIENCE))
        except BaseException:
            remove_empty(folders)
            raise
        file._new_folders = folders
        return file

    def lines(self) -> Iterator[tuple[int, Values]]:
        """Yield every line with its number, from 1, except the first line and an incomplete last one.

        Raises DamagedError at the first line that was changed, OSError if the file cannot be read.
        """
        size = os.fstat(self._descriptor).st_size
        if size > _MOST_BYTES:
            raise DamagedError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        if size:
            data = _read(self._descriptor, 0, 64)
            if data.startswith(_SQLITE):
                raise DamagedError("it is an SQLite file, as other programs and older versions of biopsy write them")
            if not data.startswith(_BEGINNING):
                raise DamagedError("it is not a journal")
            match = re.match(rb"(\d{1,9}),", data[len(_BEGINNING) :])
            if match is None or int(match[1]) != VERSION:
                version = "an unknown version" if match is None else f"version {int(match[1])}"
                raise DamagedError(f"it is of {version}, and this biopsy writes version {VERSION}")
        at, number, checksum = 0, 0, b""
        for line in _whole_lines(self._descriptor, size):
            at, number = at + len(line), number + 1
            try:
                values, checksum = _values(line, checksum, self._key)
            except _ForeignError as error:
                raise DamagedError(f"it is damaged at line {number}: {error}" if number > 1 else str(error)) from None
            except ValueError as error:
                raise DamagedError(f"it is damaged at line {number}: {error}") from None
            if number > 1:
                yield number, values
        self.end, self._is_doubtful = FileEnd(size=at, lines=number, checksum=checksum), size > at

    def begin(self, lines: Sequence[Values]) -> None:
        """Replace the content of the file by these lines. Raises OSError; the file is then empty."""
        self.end, self._is_doubtful = FileEnd(), True
        os.fchmod(self._descriptor, PRIVATE)
        self.append([("biopsy journal", VERSION), *lines])

    def append(self, lines: Sequence[Values], *, at_once: bool = False) -> None:
        """Append lines: once this returns, they survive the end of this process. Raises OSError; the file is unchanged.

        The first call, after the whole file was read, also appends the line ``opened``. The lines reach the disk soon
        after, or before this returns if ``at_once``.
        """
        if not self._says_opened:
            lines = [*lines, (_OPENED, os.getpid())]
        data, end = bytearray(), self.end
        for values in lines:
            line, checksum = _line(values, end.checksum, self._key)
            data += line
            end = FileEnd(size=end.size + len(line), lines=end.lines + 1, checksum=checksum)
        if end.size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it would be larger than {_MOST_BYTES >> 20} MiB")
        self._require_end()
        self._is_doubtful = True
        try:
            os.lseek(self._descriptor, self.end.size, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
            started = time.monotonic()
            if at_once or started >= self._synced + self._sync_interval:
                _datasync(self._descriptor)
                self._synced = time.monotonic()
                self._sync_interval = max(_SYNC_EVERY, (self._synced - started) / _SHARE_OF_SYNCING)
            self.end = end
            self._is_doubtful, self._says_opened = False, True
        except BaseException:  # such as a full disk, or Ctrl-C: an incomplete line would make the journal unusable
            with contextlib.suppress(OSError):
                self._require_end()
            raise

    def _require_end(self) -> None:
        """Cut off an incomplete write. Raises OSError if another program has changed the file."""
        if self._is_doubtful:
            os.ftruncate(self._descriptor, self.end.size)
            self._is_doubtful = False
        elif os.fstat(self._descriptor).st_size != self.end.size:
            raise OSError(errno.EIO, "another program has changed it meanwhile")

    def close(self) -> None:
        """Release the file, once all of it is on disk."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # it is readable anyway; only a power cut could lose it
                _datasync(self._descriptor)
        self.abandon()

    def remove(self) -> None:
        """Delete the file and release it. A file that cannot be deleted does no harm."""
        with contextlib.suppress(OSError):
            if stands_at(self.path, self._descriptor):  # while we hold the lock: a later file is not ours
                self.path.unlink()
                remove_empty(self._new_folders)
        self.abandon()

    def abandon(self) -> None:
        """Release the file as it is. A fork must do so, since the lock lasts while any process has the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_OPEN: weakref.WeakSet[JournalFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # programs that we start do not inherit the descriptors; forks do
    os.register_at_fork(after_in_child=lambda: [*map(JournalFile.abandon, list(_OPEN))])


def process_that_has(path: Path) -> int | None:
    """The number of the process that opened a file last, None if unknown; only for a message."""
    with contextlib.suppress(OSError, DamagedError), open_plain(path) as stream:
        number = None
        size = min(os.fstat(stream.fileno()).st_size, _MOST_BYTES)
        for line in _whole_lines(stream.fileno(), size):
            if line.startswith(b'["opened",') and (match := _OPENED_BY.match(line)):
                number = int(match[1])
        return number
    return None


def set_aside(path: Path) -> None:
    """Rename what is at ``path`` to ``NAME.1``, or the next free number; a link is renamed, not followed.

    An empty file of ours stays. Raises InUseError, or OSError if it cannot be renamed or is neither a file nor a link.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        _rename(path)
        return
    require_plain(status, path)
    if status.st_size == 0:
        with contextlib.suppress(OSError):
            require_own(status, path)
            return
    try:
        descriptor = os.open(path, os.O_RDWR | NEVER_FOLLOWS)
    except PermissionError:  # another user's, or made unwritable: no biopsy has it
        _rename(path)
        return
    try:
        lock(descriptor)
        _rename(path)
    finally:
        os.close(descriptor)


def require_plain(status: os.stat_result, path: Path) -> None:
    """Raise OSError for anything but a file or a link: opening it might block or have effects."""
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def _rename(path: Path) -> None:
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.{number}")):
        number += 1
    path.rename(path.with_name(f"{path.name}.{number}"))


def _line(values: Values, before: bytes, key: bytes) -> tuple[bytes, bytes]:
    """A serialized line and its checksum. Raises OSError if it would be too long to be read."""
    body = _ENCODER.encode(values)[:-1].encode("utf-8")
    if len(body) > _LONGEST_LINE - _SIZE_OF_END:
        raise OSError(errno.EFBIG, f"a line of it would be longer than {_LONGEST_LINE >> 20} MiB")
    checksum = _checksum(body, before, key)
    return b'%s,"%s"]\n' % (body, checksum), checksum


_SIZE_OF_END = len(b',"0123456789abcdef"]\n')


def _checksum(body: bytes, before: bytes, key: bytes) -> bytes:
    """The checksum of a line without its end, after a line with the checksum ``before``."""
    return hashlib.blake2b(before + body, key=key, person=_PURPOSE, digest_size=8).hexdigest().encode("ascii")


_PURPOSE = b"biopsy journal"
"""Separates these checksums from others under the same key."""


class _ForeignError(ValueError):
    """A line that was not written with this key, or was changed."""


def _values(line: bytes, before: bytes, key: bytes) -> tuple[Values, bytes]:
    """The values of a line, and its checksum. Raises ValueError with a message."""
    checksum = _checksum(line[:-_SIZE_OF_END], before, key)
    if not hmac.compare_digest(line[-_SIZE_OF_END:], b',"%s"]\n' % checksum):
        raise _ForeignError("it was not written here by you" if not before else "its checksum is another one")
    if not _LINE.fullmatch(line, 0, len(line) - 1):
        raise ValueError("it is not a list of texts and numbers")
    try:
        return _DECODER.raw_decode(line.decode("utf-8"))[0][:-1], checksum
    except ValueError:
        raise ValueError("it is not JSON") from None


def _whole_lines(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the complete lines in the first ``size`` bytes of a file. Raises DamagedError at one that is too long."""
    at, left = 0, b""
    while at < size and (chunk := _read(descriptor, at, min(_CHUNK, size - at))):
        at += len(chunk)
        *lines, left = (left + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(left) > _LONGEST_LINE:
            raise DamagedError(f"a line in it is longer than {_LONGEST_LINE >> 20} MiB")


def _read(descriptor: int, at: int, size: int) -> bytes:
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)
