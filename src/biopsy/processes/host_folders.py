"""What a machine keeps that does tasks for another: a temporary folder that tells whether it is in use, and files
that were sent once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.own_files import InUseError, lock, make_private_folder, open_locked, stands_at
from biopsy.processes.reading import digest_of

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
    if not _CAN_LOCK:
        return gone
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                claim = _claimed(path)
                if claim is not None:
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

_PATIENCE = 600.0
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
        with self._locked(digest, _PATIENCE):
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
