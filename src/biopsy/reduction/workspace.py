"""Where candidates stand on disk, and how they find the weights that stand in files of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from biopsy import errors
from biopsy.checks.work import clear
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.weight import ExternalPlace, external_tensor
from biopsy.model.write import cannot_write

_LONGEST_LIST = 1 << 20


@dataclass(frozen=True)
class Workspace:
    """``candidate`` is the path that every candidate is written to; ``places`` are weights referred to from there.

    ``copied`` is a folder of copied weights to be removed at the end, None if none had to be copied. ``claim`` keeps
    others from using the same path.
    """

    candidate: Path
    places: dict[int, bytes]
    copied: Path | None = None
    claim: Claim | None = None

    def note(self, place: Path) -> None:
        """Say that a candidate will be written to ``place``."""
        if self.claim is not None:
            self.claim.note(place)

    def leave(self) -> None:
        """Remove the copied weights, and let others use the path."""
        if self.copied is not None:
            shutil.rmtree(self.copied, ignore_errors=True)
        if self.claim is not None:
            self.claim.release()


class Claim:
    """The right to write candidates to a path, held by one process at a time. It ends with the process, however.

    The file that is locked lists the places that are written to, so that whoever has the right next can remove what a
    process that was killed has left there.
    """

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError if another process has it, OSError if the folder cannot be written."""
        self._lock = path.with_name(f".{path.name}.lock")
        self._descriptor = _locked(self._lock)
        _remove_what_was_left(path, os.read(self._descriptor, _LONGEST_LIST))
        os.ftruncate(self._descriptor, 0)
        self.note(path)

    def note(self, place: Path) -> None:
        """List a place before something is written there."""
        with contextlib.suppress(OSError):  # no room: then it is left there if this process is killed
            os.lseek(self._descriptor, 0, os.SEEK_END)
            os.write(self._descriptor, os.fsencode(place.absolute()) + b"\0")

    def release(self) -> None:
        """Give the path free."""
        with contextlib.suppress(OSError):
            self._lock.unlink()
        os.close(self._descriptor)


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked, and still stands where it stood when it was opened."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # not on this platform: two reductions in one folder are not told apart
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_what_was_left(path: Path, noted: bytes) -> None:
    """Remove candidates at the places ``noted``, as far as they are named after ``path``."""
    ours = re.compile(rf"\.?{re.escape(path.stem)}(\.\d+)*{re.escape(path.suffix)}")
    for place in (Path(os.fsdecode(name)) for name in noted.split(b"\0") if name):
        if ours.fullmatch(place.name):
            with contextlib.suppress(OSError):
                clear(place, whole=True)
            remove_files(place.parent, rf"\.{re.escape(place.name)}\.\d+\.part")


def remove_files(folder: Path, pattern: str, *, but_of_the_living: bool = False) -> None:
    """Remove the files of a folder of which the whole name matches a pattern.

    ``but_of_the_living``: not those of processes that still run; the pattern's group ``process`` is the number of one.
    """
    matching = re.compile(pattern)
    with contextlib.suppress(OSError):
        for found in [matching.fullmatch(name) for name in os.listdir(folder)]:  # noqa: PTH208 -- names, not paths
            if found is not None and not (but_of_the_living and _is_alive(int(found["process"]))):
                with contextlib.suppress(OSError):
                    (folder / found[0]).unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # nobody knows: there this signal would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def workspace(index: ModelIndex, wanted: Path, *, may_move: bool) -> Workspace:
    """The workspace for candidates at ``wanted``.

    ONNX allows external data only in the model's folder or below it. So a candidate stands at ``wanted`` if that is in
    the folder of the weights or in a parent of it; else, if it ``may_move``, in the folder of the weights; else the
    weights are copied, once, to a folder beside it. If another reduction writes its candidates to the same path, this
    one writes them beside it, if they may move. Raises ModelError if weights are missing, UsageError if it cannot
    write there.
    """
    claim, wanted = _claimed(wanted, may_move=may_move)
    try:
        return replace(_found(index, wanted, may_move=may_move), claim=claim)
    except BaseException:
        claim.release()
        raise


def _claimed(wanted: Path, *, may_move: bool) -> tuple[Claim, Path]:
    try:
        claim = Claim(wanted)
        _clear_other_claims(wanted)
        return claim, wanted
    except BlockingIOError:
        if may_move:
            other = wanted.with_name(f"{wanted.stem}.{os.getpid()}{wanted.suffix}")
            return Claim(other), other
    except OSError as error:
        raise cannot_write(wanted, error) from error
    raise errors.UsageError(
        f"another reduction in this folder writes its candidates to {wanted}, and the check would look at those",
        next_steps=["write {} in the check where the path of the candidate goes", "or run in another folder"],
    )


def _clear_other_claims(wanted: Path) -> None:
    """Remove what those have left who had to write beside ``wanted`` and were killed."""
    beside = re.compile(rf"\.({re.escape(wanted.stem)}\.\d+{re.escape(wanted.suffix)})\.lock")
    for found in [beside.fullmatch(name) for name in os.listdir(wanted.parent)]:  # noqa: PTH208 -- names, not paths
        if found is not None:
            with contextlib.suppress(OSError):  # whoever has it is alive
                Claim(wanted.with_name(found[1])).release()


def _found(index: ModelIndex, wanted: Path, *, may_move: bool) -> Workspace:
    external = {tensor: weight.external for tensor, weight in index.weights.items() if weight.external}
    if not external:
        return Workspace(wanted, {})
    for tensor, place in external.items():
        _require(index, tensor, place)
    here = wanted.parent.resolve()
    if here == index.folder:
        return Workspace(wanted, {})
    if here in index.folder.parents:
        prefix = PurePosixPath(index.folder.relative_to(here).as_posix())
        return Workspace(wanted, _referred(index, external, prefix))
    if may_move and os.access(index.folder, os.W_OK):
        return Workspace(index.folder / f".{wanted.stem}.{os.getpid()}{wanted.suffix}", {})
    copied = here / f".{wanted.stem}.weights"  # the same when it is resumed: it stands in the candidates' bytes
    _copy(index, {place.location for place in external.values()}, copied)
    return Workspace(wanted, _referred(index, external, PurePosixPath(copied.name)), copied)


def _require(index: ModelIndex, tensor: int, place: ExternalPlace) -> None:
    path = resolve(index.folder, place.location, index.names[tensor])
    try:
        size = path.stat().st_size
    except OSError as error:
        raise errors.ModelError(
            f"the weight '{index.names[tensor]}' stands in {path}, which cannot be read: {error.strerror}",
            next_steps=["give the folder of the weights by --external-data-dir"],
        ) from error
    if place.offset + (place.length or 0) > size:
        raise errors.ModelError(f"the weight '{index.names[tensor]}' should stand in {path}, but the file is too short")


def _referred(index: ModelIndex, external: dict[int, ExternalPlace], prefix: PurePosixPath) -> dict[int, bytes]:
    return {
        tensor: external_tensor(
            index.weights[tensor], ExternalPlace(str(prefix / place.location), place.offset, place.length)
        )
        for tensor, place in external.items()
    }


def _copy(index: ModelIndex, locations: Iterable[str], folder: Path) -> None:
    for location in locations:
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(resolve(index.folder, location), target)
