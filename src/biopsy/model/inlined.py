"""A model with its external weights inside, as a stream: no more than a few megabytes are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.model.external import Span, chunks, external_tensors, is_external, load_into, span_of
from biopsy.model.weight import read_weight
from biopsy.model.weights_file import serialized
from biopsy.model.wire import fields, head

if TYPE_CHECKING:
    import onnx

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
        if number == _GRAPH:
            yield from _graph(data, start, end, spans)
        else:
            yield data[tag:end]


def _graph(data: bytes, start: int, end: int, spans: dict[str, Span]) -> Iterator[bytes]:
    pieces: list[bytes | tuple[str, Span]] = []
    length = 0
    for number, _, tag, value, stop in fields(data, start, end):
        name = read_weight(data, value, stop).name if number == _INITIALIZER else None
        if name is None or name not in spans:
            pieces.append(data[tag:stop])
            length += stop - tag
            continue
        span = spans[name]
        kept = b"".join(data[t:e] for n, _, t, _, e in fields(data, value, stop) if n not in _ABOUT_PLACE)
        kept += head(_RAW_DATA, span.length)
        kept = head(_INITIALIZER, len(kept) + span.length) + kept
        pieces += [kept, (name, span)]
        length += len(kept) + span.length
    yield head(_GRAPH, length)
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        else:
            yield from chunks(*piece)
