"""How many bytes the tensors of a model take, before any of them is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from biopsy import errors
from biopsy.model import infer, load, value_info
from biopsy.model.index import index_bytes
from biopsy.model.storage import raw_size
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, STRING, TensorType
from biopsy.model.wire import fields, raw, string_field
from biopsy.tensors.results import Array, Feed


class ModelRun(Protocol):
    """Builds a serialized model and runs it once."""

    def __call__(self, model: bytes, feed: Feed) -> Mapping[str, Array]:
        """The outputs by name. Raises EngineFailure."""


_GRAPH = 7  # field number in ModelProto
_NODE, _OUTPUT = 1, 12  # field numbers in GraphProto
_NODE_INPUT, _NODE_OUTPUT, _OP_TYPE = 1, 2, 4  # field numbers in NodeProto
_UNKNOWN_ELEMENT = 8
"""Bytes of an element whose type nobody can tell: as many as the widest but complex128."""

_TEXT = 64
"""Bytes of a string, as NumPy holds it: a guess."""


def tensor_sizes(model: bytes, feeds: Sequence[Feed], run: ModelRun, limit: int) -> dict[str, int | None]:
    """Bytes of every output of a serialized model, the most in any of the ``feeds``; None where nobody can tell.

    As onnx infers them from the shapes of the feeds. Where that does not tell, the model is run with the *shapes* of
    those tensors as its only outputs: of a few of them, then of more as long as they are small, because an engine may
    keep what it takes shapes of. ``limit``: how many bytes of them may be kept at a time.
    """
    index = index_bytes(model)
    names = [index.names[tensor] for tensor in index.outputs]
    sizes: dict[str, int | None] = dict.fromkeys(names, 0)
    for feed in _of_distinct_shapes(feeds):
        types = _types(model, feed)
        found = {name: _static_size(types.get(name)) for name in names}
        unknown = [name for name in names if found[name] is None]
        if unknown and index.opset:
            found |= _measured(model, unknown, types, partial(run, feed=feed), limit)
        sizes = {name: _greater(sizes[name], found[name]) for name in names}
    return sizes


def _of_distinct_shapes(feeds: Sequence[Feed]) -> list[Feed]:
    found = {tuple(sorted((name, array.shape) for name, array in feed.items())): feed for feed in feeds}
    return list(found.values())


def _types(model: bytes, feed: Feed) -> dict[str, TensorType]:
    """Types of all tensors, with inputs of the feed's shapes."""
    proto = load.parse(model, None)
    for info in proto.graph.input:
        if info.name in feed and info.type.HasField("tensor_type"):
            shape = info.type.tensor_type.shape
            shape.Clear()
            for size in feed[info.name].shape:
                shape.dim.add(dim_value=size)
    return infer.infer_types(proto)


def _static_size(type_: TensorType | None) -> int | None:
    if type_ is None or type_.shape is None or not type_.is_static:
        return None
    shape = [dim for dim in type_.shape if isinstance(dim, int)]
    return math.prod(shape) * _TEXT if type_.elem == STRING else raw_size(type_.elem, shape)


def _greater(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _measured(
    model: bytes,
    names: Sequence[str],
    types: Mapping[str, TensorType],
    run: Callable[[bytes], Mapping[str, Array]],
    limit: int,
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    start, count, largest = 0, 1, 1
    while start < len(names):
        shown, shape_of = with_shapes_as_outputs(model, names[start : start + count])
        try:
            outputs = run(shown)
        except (errors.EngineFailure, errors.TooMuchMemory):
            return found
        for output, name in shape_of.items():
            if output in outputs:
                size = math.prod(outputs[output].tolist()) * _element(types.get(name))
                found[name], largest = size, max(size, largest)
        start += count
        count = max(min(2 * count, limit // largest), 1)
    return found


def _element(type_: TensorType | None) -> int:
    if type_ is None or type_.elem not in DTYPE_OF_ELEM:
        return _UNKNOWN_ELEMENT
    return _TEXT if type_.elem == STRING else max(raw_size(type_.elem, [1]) or 0, 1)


def with_shapes_as_outputs(model: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """The serialized model with the shapes of some tensors as its only outputs, and which output is whose."""
    taken = index_bytes(model).ids
    free = (name for number in range(len(taken) + len(names) + 1) if (name := f"shape {number}") not in taken)
    shape_of = dict(zip(free, names, strict=False))
    added = b"".join(
        string_field(_NODE, _shape_node(name, output))
        + string_field(_OUTPUT, value_info.value_info(output, TensorType(ELEM_OF_DTYPE["int64"], (None,))))
        for output, name in shape_of.items()
    )
    parts: list[bytes] = []
    for number, _, tag, start, end in fields(model):
        if number != _GRAPH:
            parts.append(model[tag:end])
            continue
        graph = [model[t:e] for inner, _, t, _, e in fields(model, start, end) if inner != _OUTPUT]
        parts.append(string_field(_GRAPH, b"".join([*graph, added])))
    return b"".join(parts), shape_of


def _shape_node(name: str, output: str) -> bytes:
    return (
        string_field(_NODE_INPUT, raw(name))
        + string_field(_NODE_OUTPUT, raw(output))
        + string_field(_OP_TYPE, b"Shape")
    )
