"""Writing a model so that it finds its weights: in the file itself, where they stood, or in one file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from biopsy import errors
from biopsy.model import walk
from biopsy.model.external import (
    Span,
    byte_size,
    chunks,
    clear_values,
    external_tensors,
    is_external,
    load_into,
    load_values,
    raw_values,
    span_of,
)
from biopsy.model.parts import read_weight
from biopsy.model.stripping import is_stripped
from biopsy.model.tensor_type import SIZED
from biopsy.model.wire import fields, head
from biopsy.processes.writing import as_private_as, write_whole

if TYPE_CHECKING:
    import onnx

MOST_INLINE = 1 << 30
"""Weights are gathered into the model file itself up to this many bytes. Protobuf's own end is 2 GB for all."""

MOST_SMALL = 1024
"""Bytes; by default, smaller weights stay in the model file."""

Anew: TypeAlias = "tuple[onnx.TensorProto, Callable[[], bytes]]"
"""An initializer, and what makes its new values: raw, as many as its type and shape say, and not from its old ones."""

Source: TypeAlias = "Span | bytes | Callable[[], bytes]"
"""Where the values of a weight come from."""

_LARGEST_MESSAGE = (1 << 31) - 1
_PAGE = 4096


def save_with_weights(
    model: onnx.ModelProto,
    path: Path,
    source_folder: Path,
    external: str | None,
    threshold: int = MOST_SMALL,
    *,
    anew: Sequence[Anew] = (),
) -> None:
    """Write a model so that it finds its weights; ``model`` may be changed on the way.

    External data of ``model`` stands in ``source_folder``. With ``external``, a file name, every initializer of
    ``threshold`` bytes or more goes into that file beside ``path``; one tensor's chunk is in memory at a time. Without
    it, a model written into ``source_folder`` goes on referring to its weights, and one written elsewhere gets them
    inside. ``anew`` are initializers that get other values: with ``external``, each is made when it is written. Both
    files are written whole or not at all.

    Raises UsageError if the weights are too large for one file (over 1 GB, or 2 GB with everything) or a file cannot
    be written; ModelError if weights are missing.
    """
    if external is not None:
        _save_beside(model, path, source_folder, external, threshold, anew)
        return
    put_inside(model, path, anew)
    sources: set[Path] = set()
    outside = list(external_tensors(model))
    if outside and path.parent.resolve() != source_folder.resolve():
        total = model.ByteSize() + sum(map(byte_size, outside))
        if total > MOST_INLINE:
            raise _too_large(total, path)
        sources = {span_of(tensor, source_folder).path for tensor in outside}
        load_into(model, source_folder)
    with as_private_as(sources):
        write_whole(path, [serialized(model, path)])


def serialized(model: onnx.ModelProto, path: Path) -> bytes:
    """The model as bytes. Raises UsageError if it is too large for one protobuf message; ``path`` is only named."""
    if model.ByteSize() > _LARGEST_MESSAGE:
        raise _too_large(model.ByteSize(), path)
    return bytes(model.SerializeToString())


def _too_large(total: int, path: Path) -> errors.UsageError:
    return errors.UsageError(
        f"{path} would be {total / 1e9:.1f} GB with its weights inside, too much for one file",
        next_steps=["--save-external-data, which puts the weights into a file beside it"],
    )


def put_inside(model: onnx.ModelProto, path: Path, anew: Iterable[Anew]) -> None:
    """Give initializers other values, in the model itself. Raises UsageError if it becomes too large for ``path``."""
    renewed = list(anew)
    total = model.ByteSize() + sum(byte_size(weight) for weight, _ in renewed)
    if renewed and total > _LARGEST_MESSAGE:
        raise _too_large(total, path)
    for weight, values_of in renewed:
        values = values_of()
        clear_values(weight)
        weight.raw_data = values


def _save_beside(
    model: onnx.ModelProto, path: Path, folder: Path, external: str, threshold: int, anew: Sequence[Anew]
) -> None:
    if not external or Path(external).name != external or external == path.name:
        raise errors.UsageError(
            f"the file for external data {external!r} must be a file name: it is written beside {path}"
        )
    target = path.parent / external
    if target.resolve() in {span_of(tensor, folder).path for tensor in external_tensors(model)}:
        raise errors.UsageError(
            f"{target} holds the weights of the model that is read; they would be overwritten",
            next_steps=["--save-external-data ANOTHER-NAME"],
        )
    renewed = {id(weight): values for weight, values in anew}
    moved = {
        id(weight): weight
        for weight in walk.weights(model)
        if weight.data_type in SIZED
        and byte_size(weight) >= max(threshold, 1)
        and (id(weight) in renewed or not is_stripped(weight))
    }
    put_inside(model, path, [entry for entry in anew if id(entry[0]) not in moved])
    for tensor in [tensor for tensor in external_tensors(model) if id(tensor) not in moved]:
        load_values(tensor, span_of(tensor, folder))
    sources: list[tuple[str, int, Source]] = []
    end = 0
    for number, weight in moved.items():
        length = byte_size(weight)
        step = _PAGE if length >= 1 << 16 else 64
        offset = -(-end // step) * step
        end = offset + length
        source: Source | None = renewed.get(number)
        if source is None:
            source = span_of(weight, folder) if is_external(weight) else raw_values(weight)
        sources.append((weight.name, offset, source))
        clear_values(weight)
        weight.data_location = 1  # type: ignore[assignment]
        for key, value in (("location", external), ("offset", str(offset)), ("length", str(length))):
            weight.external_data.add(key=key, value=value)
    data = serialized(model, path)
    with as_private_as(source.path for _, _, source in sources if isinstance(source, Span)):
        write_whole(target, _laid_out(sources))
        write_whole(path, [data])


def _laid_out(sources: Iterable[tuple[str, int, Source]]) -> Iterator[bytes]:
    """The file of weights: each (name, offset, values) after the bytes that lie before its offset."""
    at = 0
    for name, offset, source in sources:
        yield bytes(offset - at)
        at = offset
        if isinstance(source, Span):
            parts: Iterable[bytes] = chunks(name, source)
        else:
            parts = (source if isinstance(source, bytes) else source(),)
        for part in parts:
            yield part
            at += len(part)


def default_name(path: Path) -> str:
    """The file name for weights beside ``path`` when the user gives none: ``model.onnx.data``, as torch names it."""
    return f"{path.name}.data"


# A model with its external weights inside, as a stream: no more than a few megabytes are in memory at a time.

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_ABOUT_PLACE = frozenset({13, 14})  # TensorProto.external_data and .data_location


def inlined_parts(data: bytes, model: onnx.ModelProto, folder: Path) -> Iterator[bytes]:
    """The serialized model ``data`` with what it refers to in ``folder`` written out in its place.

    ``model`` is the same model, parsed; it may be changed. Raises ModelError if weights are missing or unsafe.
    """
    spans = {weight.name: span_of(weight, folder) for weight in model.graph.initializer if is_external(weight)}
    if len(spans) != sum(1 for _ in external_tensors(model)):  # some stand in attributes or bodies
        load_into(model, folder)
        yield serialized(model, folder)
        return
    for number, _, tag, start, end in fields(data):
        if number != _GRAPH:
            yield data[tag:end]
            continue
        pieces: list[bytes | tuple[str, Span]] = []
        for inner, _, begin, value, stop in fields(data, start, end):
            name = read_weight(data, value, stop).name if inner == _INITIALIZER else ""
            span = spans.get(name) if inner == _INITIALIZER else None
            if span is None:
                pieces.append(data[begin:stop])
                continue
            kept = b"".join(data[t:e] for n, _, t, _, e in fields(data, value, stop) if n not in _ABOUT_PLACE)
            kept += head(_RAW_DATA, span.length)
            pieces += [head(_INITIALIZER, len(kept) + span.length) + kept, (name, span)]
        yield head(_GRAPH, sum(len(piece) if isinstance(piece, bytes) else piece[1].length for piece in pieces))
        for piece in pieces:
            yield from [piece] if isinstance(piece, bytes) else chunks(*piece)
