"""Writes a model with its weights in the file itself, where they were, or in one file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

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
from biopsy.slow_imports import onnx

MOST_INLINE = 1 << 30
"""Bytes up to which external weights are put into the model file itself. Protobuf's limit is 2 GB for the file."""

MOST_SMALL = 1024
"""Bytes. By default, smaller weights stay in the model file."""

Anew: TypeAlias = "tuple[onnx.TensorProto, Callable[[], bytes]]"
"""An initializer, and a function that returns its new raw values; it must not use the old ones."""

Source: TypeAlias = "Span | bytes | Callable[[], bytes]"
"""The values of a weight, or where they come from."""

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
    """Write a model and, where necessary, its weights; ``model`` may be changed.

    External data of ``model`` is in ``source_folder``. With ``external``, a file name, every initializer of
    ``threshold`` bytes or more goes into that file beside ``path``, with one chunk in memory at a time. Without it, a
    model written into ``source_folder`` keeps its references, and one written elsewhere gets its weights inside.
    ``anew`` are initializers with new values; with ``external``, each is made when it is written. A file is written
    completely or not at all.

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
    """The serialized model. Raises UsageError, naming ``path``, if it is too large for one protobuf message."""
    if model.ByteSize() > _LARGEST_MESSAGE:
        raise _too_large(model.ByteSize(), path)
    return bytes(model.SerializeToString())


def _too_large(total: int, path: Path) -> errors.UsageError:
    return errors.UsageError(
        f"{path} would be {total / 1e9:.1f} GB with its weights inside, too much for one file",
        next_steps=["--save-external-data, which puts the weights into a file beside it"],
    )


def put_inside(model: onnx.ModelProto, path: Path, anew: Iterable[Anew]) -> None:
    """Give initializers new values inside the model. Raises UsageError, naming ``path``, if it becomes too large."""
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
    """The content of a file of weights, given as (name, offset, values) in ascending order, with zeros in between."""
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
    """The file for weights beside ``path`` if the user gives none, such as ``model.onnx.data``, as in PyTorch."""
    return f"{path.name}.data"


_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_ABOUT_PLACE = frozenset({13, 14})  # TensorProto.external_data and .data_location


def inlined_parts(data: bytes, model: onnx.ModelProto, folder: Path) -> Iterator[bytes]:
    """The serialized model ``data`` with its external data from ``folder`` inside, in chunks of a few megabytes.

    ``model`` is the same model, parsed; it may be changed. Raises ModelError if weights are missing or unsafe.
    """
    spans = {weight.name: span_of(weight, folder) for weight in model.graph.initializer if is_external(weight)}
    if len(spans) != sum(1 for _ in external_tensors(model)):  # some are in attributes or bodies
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
