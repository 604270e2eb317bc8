"""Files and folders that biopsy keeps for its user, such as locks and a secret key, which are only used if they belong
to this user; and claimed temporary folders on a machine that does tasks for another one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.reading import NEVER_FOLLOWS

PRIVATE = 0o600
"""The mode of a file that only this user may read."""

_BETWEEN_TWO_LOOKS = 0.01  # seconds


class InUseError(BlockingIOError):
    """Another process has locked the file."""


def open_own(path: Path, *, mode: int = PRIVATE) -> int:
    """Open a file of this user to read and write, or create it; its content is not changed.

    Raises OSError, with a readable ``strerror``, for anything else: a link, a pipe, a device, a folder, a file of
    another user, or one with a hard link elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NEVER_FOLLOWS, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    try:
        require_own(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own(status: os.stat_result, path: Path) -> None:
    """Raise OSError, as ``open_own``, unless this is the status of a plain file of this user with one name."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to another file", str(path))


def open_locked(path: Path, patience: float, *, mode: int = PRIVATE, shared: bool = False) -> int:
    """As ``open_own``, and lock the file until the descriptor is closed or this process ends.

    ``shared``: allow others to have a shared lock at the same time.

    Raises InUseError if another process has it locked for ``patience`` seconds, OSError as ``open_own``.
    """
    until = time.monotonic() + patience
    while True:
        is_last = time.monotonic() >= until
        try:
            descriptor = take(path, mode=mode, shared=shared)
            if descriptor is not None:
                return descriptor
            if is_last:
                raise InUseError(errno.EAGAIN, "others remove it again and again", str(path))
        except InUseError:
            if is_last:
                raise
        time.sleep(_BETWEEN_TWO_LOOKS)


def take(path: Path, *, mode: int = PRIVATE, shared: bool = False) -> int | None:
    """Open and lock a file, without waiting; None if it was removed or renamed before it was locked."""
    with ExitStack() as stack:
        descriptor = open_own(path, mode=mode)
        stack.callback(os.close, descriptor)
        lock(descriptor, shared=shared)
        if not stands_at(path, descriptor):
            return None
        stack.pop_all()
        return descriptor


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock a file until it is closed or this process ends. Raises InUseError if another process has locked it.

    ``shared``: only against exclusive locks. An own lock may change from one kind to the other; another process may
    have had the lock in between.
    """
    try:
        import fcntl
    except ImportError:  # this platform has no such locks
        return
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUseError(error.errno, error.strerror) from None


def unlock(descriptor: int) -> None:
    """Release the lock although something here, such as a map, still has the file open."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def stands_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still at ``path``: it was not removed, renamed or replaced."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def folder_of_user(variable: str, below_home: str) -> Path | None:
    """The user's folder ``biopsy`` in the folder that an environment variable names, or below the home folder.

    It is never below the current folder, which may be anybody's; None if there is no home.
    """
    parent = os.environ.get(variable, "")
    if os.path.isabs(parent):  # noqa: PTH117 -- a string
        return Path(parent) / "biopsy"
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or "")
    return home / below_home / "biopsy" if home.is_absolute() and home.is_dir() else None


def make_private_folder(folder: Path, *, anywhere: bool = False) -> None:
    """Make a folder that nobody else may read, inside a folder of this user; an existing one is not changed.

    ``anywhere``: also inside a folder of another user, since the user named it.

    Raises OSError, with a readable ``strerror``, if it cannot be made, or if others may write there.
    """
    missing, existing = [], folder
    while not existing.exists():
        missing.append(existing)
        existing = existing.parent
    if missing and not anywhere and not _is_ours(existing.stat()):
        # For instance as root in another user's home, where it would be in the owner's way for ever.
        raise PermissionError(errno.EPERM, f"{existing} belongs to another user", str(folder))
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(folder))
    if not _is_ours(status):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if has_modes() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others may write there (chmod go-w)", str(folder))


def has_modes() -> bool:
    """Whether files have permission bits on this platform."""
    return hasattr(os, "fchmod") and os.name == "posix"


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


_SIZE = 32
_PATIENCE = 2.0
"""Seconds to wait for another process that reads or makes the key."""


def key_path() -> Path | None:
    """``$XDG_STATE_HOME/biopsy/key``, or else below ``~/.local/state``; None for a user without a home."""
    folder = folder_of_user("XDG_STATE_HOME", ".local/state")
    return None if folder is None else folder / "key"


def user_key() -> bytes | None:
    """A secret key of this user, by which a process recognizes what an earlier one wrote; None if there can be none.

    Anything else in a file, such as digests and versions, others could forge. The key is random bytes at ``key_path``,
    made at the first call. Anything there but a plain file of this user with one name, that nobody else can read and
    that has the right size, is not a key, and is not changed.
    """
    path = key_path()
    if path is None:
        return None
    with contextlib.suppress(OSError):
        make_private_folder(path.parent)
        descriptor = open_locked(path, _PATIENCE)
        try:
            status = os.fstat(descriptor)
            if status.st_size > 0:
                if has_modes() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    return None
                key = os.read(descriptor, _SIZE + 1)
                return key if len(key) == _SIZE else None
            key = os.urandom(_SIZE)  # the file is new, or was left empty by a process that was killed
            if os.write(descriptor, key) == _SIZE:
                os.fsync(descriptor)
                return key
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
    return None


_CAN_LOCK = find_spec("fcntl") is not None


@contextmanager
def claimed_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A temporary folder in ``parent`` that is removed afterwards; ``remove_abandoned`` spares it meanwhile.

    Raises OSError if it cannot be made.
    """
    while True:  # again if another process has removed it as abandoned before it was locked
        with temporary_folder(prefix, parent) as folder:
            claim = _claimed(folder)
            if claim is None:
                continue
            try:
                yield folder
            finally:
                os.close(claim)
            return


def remove_abandoned(prefix: str, parent: Path) -> list[Path]:
    """Remove the folders with this prefix in ``parent`` that no process claims; returns the removed ones.

    Only folders of this user are removed, and no link is followed. On a platform without locks, all stay.
    """
    removed: list[Path] = []
    with suppress(OSError):
        for path in parent.iterdir() if _CAN_LOCK else ():
            if path.name.startswith(prefix) and (claim := _claimed(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(claim)
                removed += [] if path.exists() else [path]
    return removed


def _claimed(folder: Path) -> int | None:
    """A descriptor that locks a folder; None if another process has it locked, or if it is not this user's."""
    if not _CAN_LOCK:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
            lock(descriptor)
            if stands_at(folder, descriptor):
                return descriptor
    except OSError:  # it is in use, was removed, or cannot be locked
        pass
    if descriptor >= 0:
        os.close(descriptor)
    return None
