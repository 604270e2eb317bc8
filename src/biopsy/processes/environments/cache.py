"""Where environments are kept: a folder each, whole or not there, locked while it is made or used.

    environments/KEY         the environment, below ``python/``, and the record that says that it is whole
    environments/KEY.lock    held by one process while it is made or removed, by any number while it is used

An environment is made at its final place, since one that is moved works no more. The record is written last and
removed first, so what a process that was killed in between leaves counts for nothing, and the next one removes it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy import errors, text
from biopsy.processes.own_files import InUseError, folder_of_user, make_private_folder, open_locked
from biopsy.processes.reading import read_plain
from biopsy.processes.writing import write_whole
from biopsy.records import plain, record_of
from biopsy.text import printable

DEFAULT_LIMIT = 10_000_000_000
"""Bytes that all environments may have together, unless BIOPSY_CACHE_LIMIT says otherwise."""

_FORM = 1
"""Of the record; an environment of another form is not used, and is removed in its turn."""
_RECORD = "environment.json"
_PLACE = "python"
_OURS = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{16}")
_LARGEST_RECORD = 4 << 20
_PATIENCE = 0.05
"""Seconds to wait for a lock that somebody may have for a moment only, to look at it."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What an environment holds, written when it is whole.

    ``requirements`` are what was asked for, ``added`` what it needs besides. ``interpreter`` and ``python`` are the
    path and version of the Python that it was made with, ``packages`` the versions of all distributions in it, by
    their normalized names. ``bytes`` is the size of its files, ``seconds`` what it took to make.
    """

    requirements: tuple[str, ...]
    added: tuple[str, ...]
    interpreter: str
    python: str
    packages: dict[str, str]
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CachedEnvironment:
    """An environment in the cache, last ``used`` then. ``record`` is None for one that was left unfinished."""

    key: str
    record: Record | None
    used: datetime.datetime
    bytes: int
    in_use: bool


@dataclass(frozen=True, kw_only=True)
class Cleared:
    """What became of environments that were to go: ``stuck`` are those whose files could not be deleted."""

    gone: list[CachedEnvironment]
    in_use: list[CachedEnvironment]
    stuck: list[CachedEnvironment]


class Cache:
    """All environments of this user.

    Raises CannotInstall if there can be none: no folder, or one that others may write to.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    @classmethod
    def of_user(cls) -> Cache:
        """The cache in ``$BIOPSY_CACHE_DIR``, ``$XDG_CACHE_HOME/biopsy`` or ``~/.cache/biopsy``.

        Raises UsageError if BIOPSY_CACHE_LIMIT is no size, or if there is no home to keep it in.
        """
        given, size = os.environ.get("BIOPSY_CACHE_DIR"), os.environ.get("BIOPSY_CACHE_LIMIT")
        folder = Path(given).expanduser().absolute() if given else folder_of_user("XDG_CACHE_HOME", ".cache")
        if folder is None:
            raise errors.UsageError(
                "there is no home folder to keep environments in", next_steps=["BIOPSY_CACHE_DIR=/a/folder"]
            )
        limit = text.bytes_of(size) if size else DEFAULT_LIMIT
        if limit is None:
            raise errors.UsageError(
                f"BIOPSY_CACHE_LIMIT is no size: {printable(size or '')}", next_steps=["BIOPSY_CACHE_LIMIT=10GB"]
            )
        return cls(folder / "environments", limit)

    def whole(self, key: str) -> Path:
        """The folder of an environment and its record."""
        return self.folder / key

    def place(self, key: str) -> Path:
        """Where an environment is to be made."""
        return self.folder / key / _PLACE

    def lock(self, key: str) -> Path:
        """The file by which processes keep out of each other's way."""
        return self.folder / f"{key}.lock"

    # One environment

    @contextlib.contextmanager
    def locked(self, key: str, *, shared: bool, patience: float) -> Iterator[int]:
        """While it lasts nobody removes an environment; unless ``shared``, nobody uses it either.

        A process that inherits the descriptor keeps the lock after this one.

        Raises InUseError if others keep it longer than ``patience`` seconds; CannotInstall if there can be no lock.
        """
        try:
            make_private_folder(self.folder, anywhere="BIOPSY_CACHE_DIR" in os.environ)
            descriptor = open_locked(self.lock(key), patience, shared=shared)
        except InUseError:
            raise
        except OSError as error:
            raise self.unusable(error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def unusable(self, error: OSError) -> errors.CannotInstall:
        """The error that tells why environments cannot be kept here."""
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        return errors.CannotInstall(
            f"environments cannot be kept in {printable(str(self.folder))}: {error.strerror or error}",
            kind="disk full" if full else "no cache folder",
            next_steps=[*(["biopsy cache clear"] if full else []), "BIOPSY_CACHE_DIR=/another/folder"],
        )

    def record(self, key: str) -> Record | None:
        """What an environment holds; None if it is not there, or not whole."""
        try:
            tree = json.loads(read_plain(self.folder / key / _RECORD, _LARGEST_RECORD))
            return record_of(Record, tree) if tree["form"] == _FORM else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def finish(self, key: str, record: Record) -> None:
        """Say that an environment is whole. Raises UsageError if that cannot be written."""
        tree = {"form": _FORM, **plain(record)}
        write_whole(self.folder / key / _RECORD, [json.dumps(tree, indent=1).encode()])

    def touch(self, key: str) -> None:
        """Remember that an environment is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / key / _RECORD)

    def empty(self, key: str) -> None:
        """Remove an environment, or what is left of one, which we have to ourselves and keep."""
        with contextlib.suppress(OSError):
            self.whole(key).joinpath(_RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.whole(key), ignore_errors=True)

    def discard(self, key: str) -> None:
        """Remove an environment, or what is left of one, which we have to ourselves; its lock too, once it is gone."""
        self.empty(key)
        if not self.whole(key).exists():
            with contextlib.suppress(OSError):
                self.lock(key).unlink()

    def remove(self, key: str) -> bool:
        """Remove an environment and its lock unless somebody uses it; whether it is gone."""
        try:
            with self.locked(key, shared=False, patience=_PATIENCE):
                self.discard(key)
        except InUseError:
            return False
        return not self.whole(key).exists()

    # All of them

    def entries(self) -> list[CachedEnvironment]:
        """All environments, and what is left of unfinished ones, the one that was used last at the end.

        Ours are called as we call them, and have a lock beside them.
        """
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                is_ours = _OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
                if is_ours and self.lock(path.name).is_file():
                    record = self.record(path.name)
                    with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                        used = (path / _RECORD if record else path).stat().st_mtime
                        entry = CachedEnvironment(
                            key=path.name,
                            record=record,
                            used=datetime.datetime.fromtimestamp(used, datetime.UTC),
                            bytes=record.bytes if record else size_of(path),
                            in_use=self._in_use(path.name),
                        )
                        found.append(entry)
        return sorted(found, key=lambda entry: entry.used)

    def _in_use(self, key: str) -> bool:
        try:
            with self.locked(key, shared=False, patience=0.0):
                return False
        except InUseError:
            return True

    def clear(self, *, unused_for: datetime.timedelta = datetime.timedelta(0)) -> Cleared:
        """Remove what was not used for so long, and what is left of unfinished ones."""
        before = datetime.datetime.now(datetime.UTC) - unused_for
        old = [entry for entry in self.entries() if entry.used <= before or entry.record is None]
        gone = [entry for entry in old if self.remove(entry.key)]
        left = [replace(entry, in_use=self._in_use(entry.key)) for entry in old if entry not in gone]
        return Cleared(
            gone=gone,
            in_use=[entry for entry in left if entry.in_use],
            stuck=[entry for entry in left if not entry.in_use],
        )

    def keep_below_limit(self, but: str) -> list[CachedEnvironment]:
        """Remove what is unfinished, and what was not used for longest while all is larger than the limit, but one.

        Returns the whole ones that went.
        """
        entries, gone = self.entries(), []
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            needless = entry.record is None or total > self.limit
            if entry.key == but or entry.in_use or not needless or not self.remove(entry.key):
                continue
            total -= entry.bytes
            gone += [entry] if entry.record else []
        return gone


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder. What installers share between environments counts in each."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 -- tens of thousands
    return total
