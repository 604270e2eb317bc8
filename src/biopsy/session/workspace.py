"""Where candidates stand on disk, and how they find the weights that stand in files of their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from biopsy import errors
from biopsy.filesystem.folders import make_folders_of
from biopsy.filesystem.own_file import InUseError
from biopsy.filesystem.write import cannot_write, create_new
from biopsy.isolation.cleanup import TransientFolder
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.weight import ExternalPlace, external_tensor
from biopsy.session.claim import Claim, cannot_claim


@dataclass(frozen=True)
class Workspace:
    """``candidate`` is the path that every candidate is written to; ``places`` are weights referred to from there.

    ``copied`` is a folder of copied weights to be removed at the end, None if none had to be copied. ``claim`` keeps
    others from using the same path.
    """

    candidate: Path
    places: dict[int, bytes]
    copied: TransientFolder | None = None
    claim: Claim | None = None

    @property
    def remark(self) -> str | None:
        """What a person should know: that something stood where candidates are written, and where it is now."""
        return None if self.claim is None else self.claim.remark()

    def leave(self) -> str | None:
        """Remove the copied weights, and let others use the path. Returns what a person should know, as ``remark``."""
        if self.copied is not None:
            self.copied.remove()
        return None if self.claim is None else self.claim.release()


def sources(index: ModelIndex) -> Iterator[Path]:
    """The files that a model stands in: its own, and those of its weights."""
    if index.path is not None:
        yield index.path
    for location in {weight.external.location for weight in index.weights.values() if weight.external}:
        yield resolve(index.folder, location)


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
    other = wanted.with_name(f"{wanted.stem}.{os.getpid()}{wanted.suffix}")
    for path in [wanted, other] if may_move else [wanted]:
        try:
            return Claim(path), path
        except InUseError:
            continue
        except OSError as error:
            raise cannot_claim(path, error) from error
    raise errors.UsageError(
        f"another reduction in this folder writes its candidates to {wanted}, and the check would look at those",
        next_steps=["write {} in the check where the path of the candidate goes", "or run in another folder"],
    )


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
        return Workspace(index.folder / f".{wanted.stem}.{os.urandom(4).hex()}{wanted.suffix}", {})
    copied = _copied(index, {place.location for place in external.values()}, here / f".{wanted.stem}.weights")
    return Workspace(wanted, _referred(index, external, PurePosixPath(copied.path.name)), copied)


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


def _copied(index: ModelIndex, locations: Iterable[str], wanted: Path) -> TransientFolder:
    """Weights in a folder that is made now: nothing is written where somebody may have put a link.

    Its name stands in the candidates' bytes, by which the journal knows them: it is the same when a reduction is
    resumed, unless something else stands there. Then nothing that is remembered is of these candidates, which costs
    time and no more.
    """
    try:
        make_folders_of(wanted)
        copied = _first_free(wanted)
    except OSError as error:
        raise cannot_write(wanted, error) from error
    try:
        for location in locations:
            target = copied.path / location
            target.parent.mkdir(parents=True, exist_ok=True)
            with create_new(target) as stream, resolve(index.folder, location).open("rb") as source:
                shutil.copyfileobj(source, stream, _COPIED_AT_ONCE)
    except BaseException as error:
        copied.remove()
        if isinstance(error, OSError):
            raise cannot_write(wanted, error) from error
        raise
    return copied


def _first_free(wanted: Path) -> TransientFolder:
    for name in (wanted.name, *(f"{wanted.name}.{number}" for number in range(1, _MOST_NAMES))):
        try:
            return TransientFolder(wanted.with_name(name))
        except FileExistsError:
            continue
    return TransientFolder(wanted.with_name(f"{wanted.name}.{os.urandom(8).hex()}"))


_COPIED_AT_ONCE = 8 << 20
_MOST_NAMES = 100
