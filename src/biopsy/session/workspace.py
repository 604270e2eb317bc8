"""Where candidates and their weights are on disk, and the right to write to a path where another file may be."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from biopsy import errors
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.parts import ExternalPlace, external_tensor
from biopsy.processes import cleanup, reaper
from biopsy.processes.cleanup import TransientFolder
from biopsy.processes.own_files import InUseError, stands_at, take
from biopsy.processes.writing import cannot_write, create_new, make_folders_of
from biopsy.text import line_of


@dataclass(frozen=True)
class Workspace:
    """``candidate`` is the path that every candidate is written to; ``places`` are its references to external weights.

    ``claim`` keeps other processes from using the path. ``copied`` is a folder of copied weights to be removed at the
    end; None if there is none.
    """

    claim: Claim
    candidate: Path
    places: dict[int, bytes]
    copied: TransientFolder | None = None

    def leave(self) -> str | None:
        """Remove the copied weights and release the path. Returns a warning to show, None if there is none."""
        if self.copied is not None:
            self.copied.remove()
        return self.claim.release()


def sources(index: ModelIndex) -> Iterator[Path]:
    """The files of a model: its own, and those of its weights."""
    if index.path is not None:
        yield index.path
    for location in {weight.external.location for weight in index.weights.values() if weight.external}:
        yield resolve(index.folder, location)


def workspace(index: ModelIndex, wanted: Path, *, may_move: bool) -> Workspace:
    """The workspace for candidates at ``wanted``.

    ONNX allows external data only in the model's folder or below it. So a candidate is written to ``wanted`` if that is
    in the folder of the weights or in a parent of it; else, if it ``may_move``, to the folder of the weights; else the
    weights are copied, once, to a folder beside ``wanted``. If another reduction uses the same path, a candidate that
    may move is written beside it. Raises ModelError if weights are missing, UsageError if it cannot be written there.
    """
    other = wanted.with_name(f"{wanted.stem}.{os.getpid()}{wanted.suffix}")
    for path in [wanted, other] if may_move else [wanted]:
        try:
            claim = Claim(path)
        except InUseError:
            continue
        except OSError as error:
            raise cannot_claim(path, error) from error
        try:
            return Workspace(claim, *_with_weights(index, path, may_move=may_move))
        except BaseException:
            claim.release()
            raise
    raise errors.UsageError(
        f"another reduction in this folder writes its candidates to {wanted}, and the check would look at those",
        next_steps=["write {} in the check where the path of the candidate goes", "or run in another folder"],
    )


def _with_weights(
    index: ModelIndex, wanted: Path, *, may_move: bool
) -> tuple[Path, dict[int, bytes], TransientFolder | None]:
    """The path of candidates, their references to external weights, and the folder of copied weights, if any.

    Raises ModelError if a weight is not in its file.
    """
    external = {tensor: weight.external for tensor, weight in index.weights.items() if weight.external}
    for tensor, place in external.items():
        path = resolve(index.folder, place.location, index.names[tensor])
        try:
            size = path.stat().st_size
        except OSError as error:
            raise errors.ModelError(
                f"the weight {index.names[tensor]!r} is stored in {path}, which cannot be read: {error.strerror}",
                next_steps=["give the folder of the weights by --external-data-dir"],
            ) from error
        if place.offset + (place.length or 0) > size:
            raise errors.ModelError(
                f"the weight {index.names[tensor]!r} should be stored in {path}, but the file is too short"
            )
    here, copied = wanted.parent.resolve(), None
    if not external or here == index.folder:
        return wanted, {}, None
    if here in index.folder.parents:
        prefix = PurePosixPath(index.folder.relative_to(here).as_posix())
    elif may_move and os.access(index.folder, os.W_OK):
        return index.folder / f".{wanted.stem}.{os.urandom(4).hex()}{wanted.suffix}", {}, None
    else:
        copied = _copied(index, {place.location for place in external.values()}, here / f".{wanted.stem}.weights")
        prefix = PurePosixPath(copied.path.name)
    places = {
        tensor: external_tensor(
            index.weights[tensor], ExternalPlace(str(prefix / place.location), place.offset, place.length)
        )
        for tensor, place in external.items()
    }
    return wanted, places, copied


def _copied(index: ModelIndex, locations: Iterable[str], wanted: Path) -> TransientFolder:
    """Copy weights to a new folder, so that nothing is written through a link that somebody has made.

    The folder's name is part of the candidates' bytes, which identify them in the journal. So it is the same when a
    reduction is resumed, unless something else has that name; then nothing is remembered, which only costs time.
    """
    copied = None
    try:
        make_folders_of(wanted)
        numbers = [*range(_MOST_NAMES), os.urandom(8).hex()]
        names = (wanted.with_name(f"{wanted.name}.{number}" if number else wanted.name) for number in numbers)
        while copied is None:
            with contextlib.suppress(FileExistsError):
                copied = TransientFolder(next(names))
        for location in locations:
            target = copied.path / location
            target.parent.mkdir(parents=True, exist_ok=True)
            with create_new(target) as stream, resolve(index.folder, location).open("rb") as source:
                shutil.copyfileobj(source, stream, _COPIED_AT_ONCE)
    except BaseException as error:
        if copied is not None:
            copied.remove()
        if isinstance(error, OSError):
            raise cannot_write(wanted, error) from error
        raise
    return copied


_COPIED_AT_ONCE = 8 << 20
_MOST_NAMES = 100


_PATIENCE_WITH_THE_LIVING = 0.3
"""Seconds until a path counts as in use: other processes hold a lock briefly to look at it or to clean up."""
_PATIENCE_WITH_THE_DEAD = 1.0
"""Seconds to wait for the process, if any, that cleans up after one that was killed."""


class Lock:
    """The right to write to a path, held by one process at a time. It ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        """Raises InUseError if another process has it, OSError if that is unknown or the folder cannot be written.

        The OSError names the file in the way, if that is not ``path``.
        """
        self._path = path.with_name(f".{path.name}.lock")
        self._descriptor = _locked(self._path)
        self._entry: reaper.Entry = ("lock", str(self._path.absolute()))
        cleanup.register(*self._entry)

    def release(self) -> None:
        """Let another process have it."""
        cleanup.unregister(*self._entry)
        with contextlib.suppress(OSError):
            if stands_at(self._path, self._descriptor):
                self._path.unlink()
        os.close(self._descriptor)


class Claim:
    """The right to write candidates to a path, held by one process at a time. It ends with the process at the latest.

    An existing file may be somebody else's, so it is moved ``aside`` until the end; None if there is none. If this
    process is killed, the shell of ``cleanup`` puts it back, unless another process has claimed the path by then.
    """

    def __init__(self, path: Path) -> None:
        """Raises as ``Lock`` does."""
        self.path = path
        self.aside: Path | None = None
        self._lock = Lock(path)
        self._entries: list[reaper.Entry] = []
        try:
            self._set_aside()
        except BaseException:
            self._unlock()
            raise

    def remark(self, work: str) -> str | None:
        """A remark on where an existing file is until the ``work`` ends; None if there was none."""
        if self.aside is None:
            return None
        return f"{self.path} already exists: moved to {self.aside} until the {work} ends"

    def release(self) -> str | None:
        """Release the path and put the file aside back. Returns a warning if that fails."""
        if self.aside is not None:
            if os.path.lexists(self.aside) and not os.path.lexists(self.path):
                with contextlib.suppress(OSError):
                    self.aside.rename(self.path)
            if not os.path.lexists(self.aside):
                self.aside = None
        self._unlock()
        if self.aside is None:
            return None
        return f"{self.path} holds the last candidate: what stood there before is still {self.aside}"

    def _unlock(self) -> None:
        cleanup.keep(self.path)
        for entry in self._entries:
            cleanup.unregister(*entry)
        self._lock.release()

    def _set_aside(self) -> None:
        try:
            status = self.path.lstat()
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            return  # folders are refused elsewhere; devices belong to nobody
        number, aside = 0, self.path.with_name(f"{self.path.stem}.aside{self.path.suffix}")
        while os.path.lexists(aside):
            number += 1
            aside = self.path.with_name(f"{self.path.stem}.aside.{number}{self.path.suffix}")
        entry = ("back", reaper.identity(status), str(aside.absolute()), str(self.path.absolute()))
        self._entries.append(entry)
        cleanup.register(*entry)  # first, so that nothing is lost if the process is killed in between
        self.path.rename(aside)
        self.aside = aside


@contextlib.contextmanager
def set_aside(path: Path | None, work: str, warn: Callable[[str], None]) -> Iterator[str | None]:
    """Claim a path while ``work`` is done; gives the remark on an existing file that is moved aside, None if none is.

    ``warn`` is called at the end if the file cannot be put back. Raises UsageError if another process has the path.
    Does nothing if ``path`` is None.
    """
    if path is None:
        yield None
        return
    try:
        claim = Claim(path)
    except InUseError:
        raise errors.UsageError(f"another biopsy in this folder writes to {path}") from None
    except OSError as error:
        raise cannot_claim(path, error) from error
    try:
        yield claim.remark(work)
    finally:
        trouble = claim.release()
        if trouble is not None:
            warn(trouble)


@contextlib.contextmanager
def locked(paths: Iterable[Path]) -> Iterator[None]:
    """Keep other processes from writing to files that checks read. Raises UsageError if another process has one.

    A lock that cannot be made is left out: whether the files can be written is reported elsewhere.
    """
    with contextlib.ExitStack() as locks:
        for path in dict.fromkeys(paths):
            try:
                locks.callback(Lock(path).release)
            except InUseError:
                raise errors.UsageError(
                    f"another biopsy in this folder writes to {path}, and the checks would read that",
                    next_steps=["name another file, or run in another folder"],
                ) from None
            except OSError:
                continue
        yield


def cannot_claim(path: Path, error: OSError) -> errors.UsageError:
    """The error for a ``path`` that cannot be claimed, and what to do if another file has the name of its lock."""
    problem = cannot_write(path, error)
    lock_path = str(error.filename or "")
    if not lock_path.endswith(".lock") or not os.path.lexists(lock_path):
        return problem
    return errors.UsageError(
        problem.message,
        next_steps=[
            f"{line_of(['ls', '-ld', '--', lock_path])}    shows what it is",
            f"{line_of(['rm', '--', lock_path])}    if nobody needs it: no biopsy made it",
            "--iter-artifact OTHER    leaves it alone; write {} for it in the check",
        ],
    )


def _locked(path: Path) -> int:
    """Take a lock and return its descriptor, once the file is known to be still at its path.

    If the file existed and was free, its process was killed, and the one that cleans up needs the lock first. Raises
    OSError that names the lock if something else is at its path.
    """
    begun = free = time.monotonic()
    while True:
        was_there = os.path.lexists(path)
        descriptor = None
        try:
            descriptor = take(path)
            free = time.monotonic()
        except InUseError:
            if time.monotonic() > free + _PATIENCE_WITH_THE_LIVING:
                raise
        except OSError as error:
            reason = f"{path} is in the way: {error.strerror}" if os.path.lexists(path) else error.strerror
            raise OSError(error.errno, reason, str(path)) from error
        if descriptor is not None:
            if not was_there or free > begun + _PATIENCE_WITH_THE_DEAD:
                return descriptor
            os.close(descriptor)
        time.sleep(0.01)
