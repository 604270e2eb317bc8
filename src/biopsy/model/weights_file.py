"""Writing a model so that it finds its weights: in the file itself, where they stood, or in one file beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.filesystem.privacy import as_private_as
from biopsy.filesystem.write import write_whole
from biopsy.model import walk
from biopsy.model.external import (
    Span,
    byte_size,
    chunks,
    external_tensors,
    is_external,
    load_into,
    load_values,
    raw_values,
    span_of,
)
from biopsy.model.storage import SIZED

if TYPE_CHECKING:
    import onnx

MOST_INLINE = 1 << 30
"""Weights are gathered into the model file itself up to this many bytes. Protobuf's own end is 2 GB for all."""

_LARGEST_MESSAGE = (1 << 31) - 1
_PAGE = 4096


def save_with_weights(
    model: onnx.ModelProto, path: Path, source_folder: Path, external: str | None, threshold: int = 1024
) -> None:
    """Write a model so that it finds its weights; ``model`` may be changed on the way.

    External data of ``model`` stands in ``source_folder``. With ``external``, a file name, every initializer of
    ``threshold`` bytes or more goes into that file beside ``path``; one tensor's chunk is in memory at a time. Without
    it, a model written into ``source_folder`` goes on referring to its weights, and one written elsewhere gets them
    inside. Both files are written whole or not at all.

    Raises UsageError if the weights are too large for one file (over 1 GB, or 2 GB with everything) or a file cannot
    be written; ModelError if weights are missing.
    """
    if external is not None:
        _save_beside(model, path, source_folder, external, threshold)
        return
    sources: set[Path] = set()
    if path.parent.resolve() != source_folder.resolve():
        _require_small(model, path)
        sources = {span_of(tensor, source_folder).path for tensor in external_tensors(model)}
        load_into(model, source_folder)
    with as_private_as(sources):
        write_whole(path, [serialized(model, path)])


def serialized(model: onnx.ModelProto, path: Path) -> bytes:
    """The model as bytes. Raises UsageError if it is too large for one protobuf message; ``path`` is only named."""
    if model.ByteSize() > _LARGEST_MESSAGE:
        raise _too_large(model.ByteSize(), path)
    return bytes(model.SerializeToString())


def _require_small(model: onnx.ModelProto, path: Path) -> None:
    total = model.ByteSize() + sum(byte_size(tensor) for tensor in external_tensors(model))
    if total > MOST_INLINE and any(True for _ in external_tensors(model)):
        raise _too_large(total, path)


def _too_large(total: int, path: Path) -> errors.UsageError:
    return errors.UsageError(
        f"{path} would be {total / 1e9:.1f} GB with its weights inside, too much for one file",
        next_steps=["--save-external-data, which puts the weights into a file beside it"],
    )


def _save_beside(model: onnx.ModelProto, path: Path, folder: Path, external: str, threshold: int) -> None:
    target = _require_own_file(model, path, folder, external)
    moved = [weight for weight in walk.weights(model) if _can_move(weight, threshold)]
    kept = {id(weight) for weight in moved}
    for tensor in [tensor for tensor in external_tensors(model) if id(tensor) not in kept]:
        load_values(tensor, span_of(tensor, folder))
    sources = [(weight.name, _source(weight, folder)) for weight in moved]
    offset = 0
    offsets = []
    for weight in moved:
        length = byte_size(weight)
        offset = _aligned(offset, length)
        offsets.append(offset)
        _refer(weight, external, offset, length)
        offset += length
    data = serialized(model, path)
    with as_private_as(source.path for _, source in sources if isinstance(source, Span)):
        write_whole(target, _laid_out(sources, offsets))
        write_whole(path, [data])


def _require_own_file(model: onnx.ModelProto, path: Path, folder: Path, external: str) -> Path:
    """The file for the weights, if it is a plain name and no file that the model's weights still stand in."""
    if not external or Path(external).name != external or external == path.name:
        raise errors.UsageError(
            f"the file for external data {external!r} must be a file name: it is written beside {path}"
        )
    target = path.parent / external
    used = {span_of(tensor, folder).path for tensor in external_tensors(model)}
    if target.resolve() in used:
        raise errors.UsageError(
            f"{target} holds the weights of the model that is read; they would be overwritten",
            next_steps=["--save-external-data ANOTHER-NAME"],
        )
    return target


def _can_move(weight: onnx.TensorProto, threshold: int) -> bool:
    return weight.data_type in SIZED and byte_size(weight) >= max(threshold, 1)


def _source(weight: onnx.TensorProto, folder: Path) -> Span | bytes:
    if is_external(weight):
        return span_of(weight, folder)
    values = raw_values(weight)
    if len(values) != byte_size(weight):
        raise errors.ModelError(
            f"tensor {weight.name!r} needs {byte_size(weight)} bytes by its type and shape, but it has {len(values)}"
        )
    return values


def _refer(weight: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
        weight.ClearField(field)
    weight.data_location = 1  # type: ignore[assignment]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value


def _aligned(offset: int, length: int) -> int:
    """Where a tensor may begin: large ones on a page, so that engines can map them, small ones on 64 bytes."""
    step = _PAGE if length >= 1 << 16 else 64
    return -(-offset // step) * step


def _laid_out(sources: Iterable[tuple[str, Span | bytes]], offsets: Iterable[int]) -> Iterator[bytes]:
    at = 0
    for (name, source), offset in zip(sources, offsets, strict=True):
        yield bytes(offset - at)
        at = offset
        for chunk in chunks(name, source) if isinstance(source, Span) else (source,):
            yield chunk
            at += len(chunk)


def default_name(path: Path) -> str:
    """The file name for weights beside ``path`` when the user gives none: ``model.onnx.data``, as torch names it."""
    return f"{path.name}.data"
