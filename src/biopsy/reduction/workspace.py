"""Where candidates stand on disk, and how they find the weights that stand in files of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from biopsy import errors
from biopsy.filesystem.write import cannot_write
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.weight import ExternalPlace, external_tensor
from biopsy.reduction.claim import Claim


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

    def note(self, place: Path, digest: bytes) -> None:
        """Say that a candidate will be written to ``place``, and what tells it from other models."""
        if self.claim is not None:
            self.claim.note(place, digest)

    @property
    def remark(self) -> str | None:
        """What a person should know: that something stood where candidates are written, and where it is now."""
        return None if self.claim is None else self.claim.remark()

    def leave(self) -> str | None:
        """Remove the copied weights, and let others use the path. Returns what a person should know, as ``remark``."""
        if self.copied is not None:
            shutil.rmtree(self.copied, ignore_errors=True)
        return None if self.claim is None else self.claim.release()


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
            return _own_claim(other), other
    except OSError as error:
        raise cannot_write(wanted, error) from error
    raise errors.UsageError(
        f"another reduction in this folder writes its candidates to {wanted}, and the check would look at those",
        next_steps=["write {} in the check where the path of the candidate goes", "or run in another folder"],
    )


def _own_claim(path: Path) -> Claim:
    """The claim to a path that nobody else wants, though who looks for what the dead have left may have it for once."""
    for _ in range(_PATIENCE):
        with contextlib.suppress(BlockingIOError):
            return Claim(path)
        time.sleep(0.01)
    return Claim(path)


_PATIENCE = 100


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
            f"the weight {index.names[tensor]!r} stands in {path}, which cannot be read: {error.strerror}",
            next_steps=["give the folder of the weights by --external-data-dir"],
        ) from error
    if place.offset + (place.length or 0) > size:
        raise errors.ModelError(f"the weight {index.names[tensor]!r} should stand in {path}, but the file is too short")


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
