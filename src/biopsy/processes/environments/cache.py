"""The cache of environments: a folder for each, locked while it is made or used.

    environments/KEY         the environment, in ``python/``, and the record, which only a finished one has
    environments/KEY.lock    locked by one process that makes or removes it, or by any number that use it

An environment is made at its final place, since it would not work after being moved. The record is written last and
removed first, so that what a killed process leaves is unfinished, and the next process removes it.
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
"""Bytes of all environments together, unless BIOPSY_CACHE_LIMIT sets another limit."""

_FORM = 1
"""The version of the record; an environment with another version is not used, and is removed like any other."""
_RECORD = "environment.json"
_PLACE = "python"
_OURS = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{16}")
_LARGEST_RECORD = 4 << 20
_PATIENCE = 0.05
"""Seconds to wait for a lock that another process may have for a moment only, to look at it."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The description of a finished environment.

    ``requirements`` are the user's, ``added`` those that turned out to be needed in addition. ``interpreter`` and
    ``python`` are the path and version of the Python that it was made with; ``packages`` are the versions of all
    distributions in it, by their normalized names. ``bytes`` is the size of its files, ``seconds`` the time to make it.
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
    """An environment in the cache; ``used`` is the time of its last use, ``record`` None if it is unfinished."""

    key: str
    record: Record | None
    used: datetime.datetime
    bytes: int
    in_use: bool


@dataclass(frozen=True, kw_only=True)
class Cleared:
    """The environments that were removed (``gone``), and those that could not be; ``stuck``: files were not deleted."""

    gone: list[CachedEnvironment]
    in_use: list[CachedEnvironment]
    stuck: list[CachedEnvironment]


class Cache:
    """All environments of this user.

    Methods raise CannotInstall if the folder cannot be made or others may write to it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    @classmethod
    def of_user(cls) -> Cache:
        """The cache in ``$BIOPSY_CACHE_DIR``, ``$XDG_CACHE_HOME/biopsy`` or ``~/.cache/biopsy``.

        Raises UsageError if BIOPSY_CACHE_LIMIT is not a size, or if there is no home folder.
        """
        path, size = os.environ.get("BIOPSY_CACHE_DIR"), os.environ.get("BIOPSY_CACHE_LIMIT")
        folder = Path(path).expanduser().absolute() if path else folder_of_user("XDG_CACHE_HOME", ".cache")
        if folder is None:
            raise errors.UsageError(
                "there is no home folder to keep environments in", next_steps=["BIOPSY_CACHE_DIR=/a/folder"]
            )
        limit = text.bytes_of(size) if size else DEFAULT_LIMIT
        if limit is None:
            raise errors.UsageError(
                f"BIOPSY_CACHE_LIMIT is not a size: {printable(size or '')}", next_steps=["BIOPSY_CACHE_LIMIT=10GB"]
            )
        return cls(folder / "environments", limit)

    def whole(self, key: str) -> Path:
        """The folder of an environment and its record."""
        return self.folder / key

    def place(self, key: str) -> Path:
        """The folder of an environment itself."""
        return self.folder / key / _PLACE

    def lock(self, key: str) -> Path:
        """The lock file of an environment."""
        return self.folder / f"{key}.lock"

    @contextlib.contextmanager
    def locked(self, key: str, *, shared: bool, patience: float) -> Iterator[int]:
        """Lock an environment: to use it if ``shared``, else to make or remove it.

        A process that inherits the descriptor keeps the lock when this one ends.

        Raises InUseError if others keep the lock longer than ``patience`` seconds; CannotInstall if it cannot be made.
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
        """The error if environments cannot be kept in the cache."""
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        return errors.CannotInstall(
            f"environments cannot be kept in {printable(str(self.folder))}: {error.strerror or error}",
            kind="disk full" if full else "no cache folder",
            next_steps=[*(["biopsy cache clear"] if full else []), "BIOPSY_CACHE_DIR=/another/folder"],
        )

    def record(self, key: str) -> Record | None:
        """The record of an environment; None if it is missing or unfinished."""
        try:
            tree = json.loads(read_plain(self.folder / key / _RECORD, _LARGEST_RECORD))
            return record_of(Record, tree) if tree["form"] == _FORM else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def finish(self, key: str, record: Record) -> None:
        """Write the record of an environment. Raises UsageError if it cannot be written."""
        tree = {"form": _FORM, **plain(record)}
        write_whole(self.folder / key / _RECORD, [json.dumps(tree, indent=1).encode()])

    def touch(self, key: str) -> None:
        """Record that an environment is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / key / _RECORD)

    def empty(self, key: str) -> None:
        """Remove an environment, or what is left of one, that this process has locked; its lock stays."""
        with contextlib.suppress(OSError):
            self.whole(key).joinpath(_RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.whole(key), ignore_errors=True)

    def discard(self, key: str) -> None:
        """Remove an environment, or what is left of one, that this process has locked, and then its lock."""
        self.empty(key)
        if not self.whole(key).exists():
            with contextlib.suppress(OSError):
                self.lock(key).unlink()

    def remove(self, key: str) -> bool:
        """Remove an environment and its lock, unless it is in use; returns whether it is gone."""
        try:
            with self.locked(key, shared=False, patience=_PATIENCE):
                self.discard(key)
        except InUseError:
            return False
        return not self.whole(key).exists()

    def entries(self) -> list[CachedEnvironment]:
        """All environments, also unfinished ones, ordered by their last use.

        Only folders with a name of ours and a lock beside them count.
        """
        environments = []
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                is_ours = _OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
                if is_ours and self.lock(path.name).is_file():
                    record = self.record(path.name)
                    with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                        used = (path / _RECORD if record else path).stat().st_mtime
                        entry = CachedEnvironment(
                            key=path.name,
                            record=record,
                            used=datetime.datetime.fromtimestamp(used, datetime.UTC),
                            bytes=record.bytes if record else size_of(path),
                            in_use=self._in_use(path.name),
                        )
                        environments.append(entry)
        return sorted(environments, key=lambda entry: entry.used)

    def _in_use(self, key: str) -> bool:
        try:
            with self.locked(key, shared=False, patience=0.0):
                return False
        except InUseError:
            return True

    def clear(self, *, unused_for: datetime.timedelta = datetime.timedelta(0)) -> Cleared:
        """Remove environments that were not used for this long, and unfinished ones."""
        before = datetime.datetime.now(datetime.UTC) - unused_for
        old = [entry for entry in self.entries() if entry.used <= before or entry.record is None]
        gone = [entry for entry in old if self.remove(entry.key)]
        remaining = [replace(entry, in_use=self._in_use(entry.key)) for entry in old if entry not in gone]
        return Cleared(
            gone=gone,
            in_use=[entry for entry in remaining if entry.in_use],
            stuck=[entry for entry in remaining if not entry.in_use],
        )

    def keep_below_limit(self, but: str) -> list[CachedEnvironment]:
        """Remove unfinished environments, and those not used for longest until all are within the limit, except one.

        Returns the finished ones that were removed.
        """
        entries, removed = self.entries(), []
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            needless = entry.record is None or total > self.limit
            if entry.key == but or entry.in_use or not needless or not self.remove(entry.key):
                continue
            total -= entry.bytes
            removed += [entry] if entry.record else []
        return removed


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder. Files that installers share between environments count in each."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 -- tens of thousands
    return total
