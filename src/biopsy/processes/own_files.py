"""Files and folders that this program keeps for its user, such as locks and a secret key: whatever stands there is used
only if it is ours. And what a machine keeps that does tasks for another: a temporary folder that tells whether it is in
use, and files that were sent once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.reading import NEVER_FOLLOWS, digest_of

PRIVATE = 0o600
"""The mode of what only this user is to read."""

_BETWEEN_TWO_LOOKS = 0.01  # seconds


class InUseError(BlockingIOError):
    """Another process has the file."""


def open_own(path: Path, *, mode: int = PRIVATE, flags: int = 0) -> int:
    """The descriptor of a file that is read and written, made if there is none; nothing in it is changed.

    ``flags`` are further ones for ``os.open``, such as O_APPEND.

    Raises OSError, with words for a person as its ``strerror``, if something else stands there: a link, a pipe, a
    device, a folder, a file of another user, or one that has a second name elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NEVER_FOLLOWS | flags, mode)
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
    """Raise OSError, as ``open_own`` does, unless this is the status of a plain file of ours with one name."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to another file", str(path))


def open_locked(path: Path, patience: float, *, mode: int = PRIVATE, flags: int = 0, shared: bool = False) -> int:
    """As ``open_own``, and nobody else has the file until the descriptor is closed or this process ends.

    ``shared``: others may have it at the same time who want no more than that either.

    Raises InUseError if another process has it for ``patience`` seconds, OSError as ``open_own`` does.
    """
    until = time.monotonic() + patience
    while True:
        last = time.monotonic() >= until
        try:
            descriptor = take(path, mode=mode, flags=flags, shared=shared)
            if descriptor is not None:
                return descriptor
            if last:
                raise InUseError(errno.EAGAIN, "others remove it again and again", str(path))
        except InUseError:
            if last:
                raise
        time.sleep(_BETWEEN_TWO_LOOKS)


def take(path: Path, *, mode: int = PRIVATE, flags: int = 0, shared: bool = False) -> int | None:
    """One attempt of ``open_locked``; None if the file was removed or renamed before we had it."""
    with ExitStack() as stack:
        descriptor = open_own(path, mode=mode, flags=flags)
        stack.callback(os.close, descriptor)
        lock(descriptor, shared=shared)
        if not stands_at(path, descriptor):
            return None
        stack.pop_all()
        return descriptor


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Have a file to ourselves until it is closed or this process ends. Raises InUseError if another has it.

    ``shared``: only keep it from others who want it to themselves. What we have already may change from one to the
    other, and another may have had it in between.
    """
    try:
        import fcntl
    except ImportError:  # not on this platform: two processes are not told apart
        return
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUseError(error.errno, error.strerror) from None


def unlock(descriptor: int) -> None:
    """Let others have the file, though something here still has it open, such as a map."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def stands_at(path: Path, descriptor: int) -> bool:
    """Whether the very file that is open is the one at ``path``, which is not so once it was removed or renamed."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


# Folders of this user in which nobody else can put anything.


def folder_of_user(variable: str, below_home: str) -> Path | None:
    """Our folder where the user has such things: in that which an environment variable names, or below the home.

    Never below the current folder, which may be anybody's; None if there is no home.
    """
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # noqa: PTH117 -- a word
        return Path(given) / "biopsy"
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or "")
    return home / below_home / "biopsy" if home.is_absolute() and home.is_dir() else None


def make_private_folder(folder: Path, *, anywhere: bool = False) -> None:
    """Make a folder that nobody else may read, if there is none, in one of ours; one that is there stays as it is.

    ``anywhere``: in a folder of others too, since a person named it.

    Raises OSError, with words for a person as its ``strerror``, if it cannot be made, or if others may write there.
    """
    missing, there = [], folder
    while not there.exists():
        missing.append(there)
        there = there.parent
    if missing and not anywhere and not _is_ours(there.stat()):
        # As root in somebody's home: the folder would be in the owner's way for ever.
        raise PermissionError(errno.EPERM, f"{there} belongs to another user", str(folder))
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder))
    if not _is_ours(status):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if has_modes() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others may write there (chmod go-w)", str(folder))


def has_modes() -> bool:
    """Whether files tell here who may read and write them."""
    return hasattr(os, "fchmod") and os.name == "posix"


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


# A secret of this user: by it we know again in a later process what we wrote in an earlier one.
#
# Whatever else a file of ours says of itself, such as digests and versions, anybody can work out and write too.

_SIZE = 32
_PATIENCE = 2.0
"""Seconds to wait for another process that looks at the key, or makes it."""


def key_path() -> Path | None:
    """``$XDG_STATE_HOME/biopsy/key``, or else below ``~/.local/state``; None for a user without a home."""
    folder = folder_of_user("XDG_STATE_HOME", ".local/state")
    return None if folder is None else folder / "key"


def user_key() -> bytes | None:
    """Random bytes that this user alone can read, made when they are first asked for; None if that cannot be.

    They stand at ``key_path``. Anything there but a plain file of this user that nobody else can read, with one name
    and as many bytes, is no key, and stays as it is.
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
            key = os.urandom(_SIZE)  # who was killed before it was written has left an empty file, or none
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
    """A temporary folder in ``parent`` that is gone afterwards; ``remove_abandoned`` spares it meanwhile.

    Raises OSError if it cannot be made.
    """
    while True:  # until nobody has taken it for an abandoned one before we could lock it
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
    """Remove the folders with such names in ``parent`` that nobody claims any more; returns those that have gone.

    Only folders of this user are touched, and no link is followed. Where none can be locked, all stay.
    """
    gone: list[Path] = []
    with suppress(OSError):
        for path in parent.iterdir() if _CAN_LOCK else ():
            if path.name.startswith(prefix) and (claim := _claimed(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(claim)
                gone += [] if path.exists() else [path]
    return gone


def _claimed(folder: Path) -> int | None:
    """A descriptor with which nobody else has the folder; None if somebody has, or if it is none of ours."""
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
    except OSError:  # it is in use, has gone, or cannot be locked
        pass
    if descriptor >= 0:
        os.close(descriptor)
    return None


# Files kept by the digest of what they hold: what was sent to a machine once is there for the next that needs it.
#
#     DIGEST         a file, whole: it is renamed to this when all of it has come, and has the digest
#     DIGEST.lock    had by one process while the file comes, is copied or is removed
#
# A file is copied out and never linked: ONNX refuses weights that have a second name.

DEFAULT_LIMIT = 20_000_000_000
"""Bytes that all files may have together; those used longest ago go first."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

_PATIENCE_FOR_CONTENT = 600.0
"""Seconds that another process may take to receive a file."""


def _is_copied(kept: Path, copy: Path, digest: str, size: int) -> bool:
    """Whether a file stands there and has the digest, which is looked at in what was copied: disks and people err."""
    try:
        if kept.is_symlink() or kept.stat().st_size != size:
            return False
        shutil.copyfile(kept, copy)
    except FileNotFoundError:
        return False
    return digest_of(copy) == digest


class ContentStore:
    """The files in ``folder``, of at most ``limit`` bytes. Several processes may use one at the same time."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._folder = folder
        self._limit = limit
        self.received = 0
        """Bytes that came, and were not here before."""

    def copy_to(self, path: Path, digest: str, size: int, received: Callable[[], Iterable[bytes]]) -> None:
        """Make a file at ``path``, in place of what stands there, with the content of this digest and size in bytes.

        ``received`` gives it in parts, and is called only if it is not here. Raises BiopsyError if what comes is
        something else or another process keeps it, OSError if it cannot be written.
        """
        if not _DIGEST.fullmatch(digest):
            raise errors.BiopsyError(f"{digest[:80]!r} is no digest")
        make_private_folder(self._folder, anywhere=True)
        with self._locked(digest, _PATIENCE_FOR_CONTENT):
            kept = self._folder / digest
            part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
            try:
                if not _is_copied(kept, part, digest, size):
                    self._receive(kept, digest, size, received())
                    if not _is_copied(kept, part, digest, size):
                        raise errors.BiopsyError(f"what is kept as {kept} changes while it is read")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            os.utime(kept)
        self._make_room()

    @contextlib.contextmanager
    def _locked(self, digest: str, patience: float) -> Iterator[None]:
        try:
            descriptor = open_locked(self._folder / f"{digest}.lock", patience)
        except InUseError as error:
            raise errors.BiopsyError(f"another process has not received {digest} in {patience:.0f} s") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def _receive(self, kept: Path, digest: str, size: int, parts: Iterable[bytes]) -> None:
        part = kept.with_name(f"{digest}.part")  # nobody else writes it: we have the lock
        found, length = hashlib.sha256(), 0
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                for chunk in parts:
                    length += len(chunk)
                    if length > size:
                        break
                    found.update(chunk)
                    stream.write(chunk)
            if length != size or found.hexdigest() != digest:
                raise errors.BiopsyError(f"what came for the file {digest} is something else: was it changed?")
            part.replace(kept)
        finally:
            part.unlink(missing_ok=True)
        self.received += size

    def _make_room(self) -> None:
        """Remove files that nobody has, the one used longest ago first, until the others are within the limit."""
        there = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if _DIGEST.fullmatch(path.name):
                    there.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        excess = sum(size for _, size, _ in there) - self._limit
        for _, size, path in sorted(there):
            if excess <= 0:
                return
            with contextlib.suppress(errors.BiopsyError, OSError), self._locked(path.name, 0):
                path.unlink(missing_ok=True)
                excess -= size
