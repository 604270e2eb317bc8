"""The file under a journal: lines that are only ever added, each with a checksum over all that stands before it.

The checksums are keyed with a secret of the user (``processes/own_files.py``), so that nobody else can write a line.

A line is a flat list of texts and numbers in JSON: what it is, its values, the checksum. Nothing nests, and no line and
no file is larger than what is written here, so that a file from elsewhere costs no more than ours. The first line names
the format; the line ``opened`` tells the number of the process that has the file from there on.

A process that is killed leaves at most a last line without its end: it is cut off by the next. Any other line that is
not as it was written, or not where it was, is damage.
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

VERSION = 3
"""Of the format; the journals of versions 1 and 2 were SQLite files."""

Values: TypeAlias = Sequence[str | int | float | bool]
"""A line: what it is, then its values."""

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
"""Seconds to wait for whoever else has the file: one that was killed may just be ending."""

_SYNC_EVERY = 1.0  # seconds
_SHARE_OF_SYNCING = 0.01
"""At most this part of the time is spent waiting for the disk, however slow it is."""

_datasync = getattr(os, "fdatasync", os.fsync)


class DamagedError(Exception):
    """What stands in the file is not what a journal holds."""


@dataclass(frozen=True, kw_only=True)
class FileEnd:
    """Where a file ends: its size in bytes, its lines, and the checksum of the last."""

    size: int = 0
    lines: int = 0
    checksum: bytes = b""


class JournalFile:
    """An open file that nobody else has: locked until it is closed, or its process has ended, however it ends.

    To be used by one thread at a time. A fork of this process has it no more.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use ``open``; ``descriptor`` holds the lock."""
        self.path = path
        self._key = user_key() or os.urandom(32)  # where no key can be had, nobody can resume it
        self._descriptor = descriptor
        self._folders: list[Path] = []  # those made for it
        self.end = FileEnd()
        self._is_ours = False
        self._doubtful = False  # whether more may stand in the file than ``_end`` says: what was not written to its end
        self._synced, self._rest = time.monotonic(), _SYNC_EVERY
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path) -> JournalFile:
        """The file at ``path``, an empty one if there is none; nothing in it is read or changed.

        Folders that are missing are made. Raises InUseError, or OSError as ``open_own`` does.
        """
        made = make_folders_of(path)
        try:
            file = cls(path, open_locked(path, _PATIENCE))
        except BaseException:
            remove_empty(made)
            raise
        file._folders = made
        return file

    def lines(self) -> Iterator[tuple[int, Values]]:
        """Every line with its number, from 1; the first one is not told, nor a last one that was cut short.

        Raises DamagedError at the first line that is not as it was written, OSError if the file cannot be read.
        """
        size = os.fstat(self._descriptor).st_size
        if size > _MOST_BYTES:
            raise DamagedError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        if size:
            data = _read(self._descriptor, 0, 64)
            if data.startswith(_SQLITE):
                raise DamagedError("it is an SQLite file, as other programs and older versions of biopsy write them")
            if not data.startswith(_BEGINNING):
                raise DamagedError("it is no journal")
            found = re.match(rb"(\d{1,9}),", data[len(_BEGINNING) :])
            if found is None or int(found[1]) != VERSION:
                version = "an unknown version" if found is None else f"version {int(found[1])}"
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
        self.end, self._doubtful = FileEnd(size=at, lines=number, checksum=checksum), size > at

    def begin(self, lines: Sequence[Values]) -> None:
        """Start over, with these lines and that we have the file. Raises OSError; nothing then stands in it."""
        self.end, self._doubtful = FileEnd(), True
        if hasattr(os, "fchmod"):
            os.fchmod(self._descriptor, PRIVATE)
        self.append([("biopsy journal", VERSION), *lines])

    def append(self, lines: Sequence[Values], *, at_once: bool = False) -> None:
        """Add lines: once this returns they survive the end of this process. Raises OSError; the file is as it was.

        The first ones, after all of the file was read, also say that we have it. The disk has them soon after, or
        before this returns if ``at_once``.
        """
        if not self._is_ours:
            lines = [*lines, (_OPENED, os.getpid())]
        data, end = bytearray(), self.end
        for values in lines:
            line, checksum = _line(values, end.checksum, self._key)
            data += line
            end = FileEnd(size=end.size + len(line), lines=end.lines + 1, checksum=checksum)
        if end.size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it would be larger than {_MOST_BYTES >> 20} MiB")
        self._require_end()
        self._doubtful = True
        try:
            os.lseek(self._descriptor, self.end.size, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
            started = time.monotonic()
            if at_once or started >= self._synced + self._rest:
                _datasync(self._descriptor)
                self._synced = time.monotonic()
                self._rest = max(_SYNC_EVERY, (self._synced - started) / _SHARE_OF_SYNCING)
            self.end = end
            self._doubtful, self._is_ours = False, True
        except BaseException:  # such as a full disk, or Ctrl-C: half a line would be the end of the journal
            with contextlib.suppress(OSError):
                self._require_end()
            raise

    def _require_end(self) -> None:
        """Cut off what was not written to its end. Raises OSError if somebody else has changed the file."""
        if self._doubtful:
            os.ftruncate(self._descriptor, self.end.size)
            self._doubtful = False
        elif os.fstat(self._descriptor).st_size != self.end.size:
            raise OSError(errno.EIO, "another program has changed it meanwhile")

    def close(self) -> None:
        """Let go of the file, once the disk has all of it."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # it can be read all the same; only a power cut could take it
                _datasync(self._descriptor)
        self.abandon()

    def remove(self) -> None:
        """Delete the file and let go of it. What cannot be deleted does no harm."""
        with contextlib.suppress(OSError):
            if stands_at(self.path, self._descriptor):  # while we have the lock: what is there later is another's
                self.path.unlink()
                remove_empty(self._folders)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is. A fork does: a lock lasts as long as anyone has the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_OPEN: weakref.WeakSet[JournalFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # programs that we start have our files no more by themselves; a fork would
    os.register_at_fork(after_in_child=lambda: [*map(JournalFile.abandon, list(_OPEN))])


def process_that_has(path: Path) -> int | None:
    """The number of the process that opened a file last, as far as can be told: it is only good to know."""
    with contextlib.suppress(OSError, DamagedError), open_plain(path) as stream:
        found = None
        size = min(os.fstat(stream.fileno()).st_size, _MOST_BYTES)
        for line in _whole_lines(stream.fileno(), size):
            if line.startswith(b'["opened",') and (match := _OPENED_BY.match(line)):
                found = int(match[1])
        return found
    return None


def set_aside(path: Path) -> None:
    """Rename what stands at ``path`` to ``NAME.1``, or the next number that is free; a link is not followed.

    Not an empty file of ours. Raises InUseError, or OSError if it cannot be renamed, or is neither a file nor a link.
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
    except PermissionError:  # of another user, or one that we made unwritable: no biopsy has it
        _rename(path)
        return
    try:
        lock(descriptor)
        _rename(path)
    finally:
        os.close(descriptor)


def require_plain(status: os.stat_result, path: Path) -> None:
    """Raise OSError for what is neither a file nor a link: opening it might wait for ever, or do something."""
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))


def _rename(path: Path) -> None:
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.{number}")):
        number += 1
    path.rename(path.with_name(f"{path.name}.{number}"))


# Lines


def _line(values: Values, before: bytes, key: bytes) -> tuple[bytes, bytes]:
    """A line and its checksum. Raises OSError if it would be longer than one that is read."""
    body = _ENCODER.encode(values)[:-1].encode("utf-8")
    if len(body) > _LONGEST_LINE - _SIZE_OF_END:
        raise OSError(errno.EFBIG, f"a line of it would be longer than {_LONGEST_LINE >> 20} MiB")
    checksum = _checksum(body, before, key)
    return b'%s,"%s"]\n' % (body, checksum), checksum


_SIZE_OF_END = len(b',"0123456789abcdef"]\n')


def _checksum(body: bytes, before: bytes, key: bytes) -> bytes:
    """The checksum of a line, without what it ends with, after one that has the checksum ``before``."""
    return hashlib.blake2b(before + body, key=key, person=_PURPOSE, digest_size=8).hexdigest().encode("ascii")


_PURPOSE = b"biopsy journal"
"""Tells these checksums from others under the same key."""


class _ForeignError(ValueError):
    """A line that was not written with this key, or is not as it was written."""


def _values(line: bytes, before: bytes, key: bytes) -> tuple[Values, bytes]:
    """What a line holds, and its checksum. Raises ValueError, with words."""
    checksum = _checksum(line[:-_SIZE_OF_END], before, key)
    if not hmac.compare_digest(line[-_SIZE_OF_END:], b',"%s"]\n' % checksum):
        raise _ForeignError("it was not written here by you" if not before else "its checksum is another one")
    if not _LINE.fullmatch(line, 0, len(line) - 1):
        raise ValueError("it is no list of texts and numbers")
    try:
        return _DECODER.raw_decode(line.decode("utf-8"))[0][:-1], checksum
    except ValueError:
        raise ValueError("it is no JSON") from None


def _whole_lines(descriptor: int, size: int) -> Iterator[bytes]:
    """The lines in the first ``size`` bytes of a file, with their ends. Raises DamagedError at one that is too long."""
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
