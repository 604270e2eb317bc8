"""Recording more tensors than fit into memory: how many bytes they take, and a batch of them at a time, each from a
run of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from biopsy import errors
from biopsy.model import infer, load
from biopsy.model.index import index_bytes
from biopsy.model.parts import value_info
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, STRING, TensorType, raw_size
from biopsy.model.wire import fields, raw, string_field
from biopsy.tensors.appendable_store import AppendableStore
from biopsy.tensors.results import Array, Feed, same_values

RunBatch: TypeAlias = Callable[[Sequence[str]], Iterable[dict[str, Array]]]
"""Runs the model with these tensors as its outputs: what it gives, one iteration after the other."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to record: the tensors ``names`` with their ``sizes`` in bytes (None: unknown), of so many iterations.

    ``own`` are those of them that are outputs of the model itself. ``limit`` is how many bytes of tensors may be in
    memory at a time; a single tensor may be larger. ``runner`` is the number of the engine in the file.
    """

    runner: int
    names: Sequence[str]
    sizes: Mapping[str, int | None]
    own: Sequence[str]
    iterations: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A finished batch: its number from 1, of how many; tensors and bytes that it added; seconds that it took."""

    number: int
    count: int
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A tensor that two batches have, with other values in the later one. ``again`` is valid during the call only."""

    name: str
    iteration: int
    batch: int
    again: Array
    first: Array


def plan(request: Request, done: frozenset[str] = frozenset()) -> tuple[list[list[str]], list[str]]:
    """The batches of tensors still to record, and the tensors that every batch has.

    Tensors stay in their order. Those whose size is unknown have a batch of their own.
    """
    shared = _shared(request)
    room = max(request.limit - sum(request.sizes[name] or 0 for name in shared), 1)
    batches: list[list[str]] = []
    left = -1
    for name in dict.fromkeys((*shared, *request.names)):
        if name in done:
            continue
        size = 0 if name in shared else request.sizes[name]
        if size is None or size > left:
            batches.append([])
            left = room
        batches[-1].append(name)
        left = -1 if size is None else left - size
    return batches, shared


def _shared(request: Request) -> list[str]:
    """The model's own outputs, smallest first, up to a quarter of the limit; else the smallest tensor of all."""
    known = {name: size for name in request.names if (size := request.sizes[name]) is not None}
    room = request.limit // 4
    shared = []
    for name in sorted((name for name in request.own if name in known), key=known.__getitem__):
        if known[name] <= room:
            shared.append(name)
            room -= known[name]
    smallest = min(known, key=known.__getitem__, default=None)
    return shared or ([smallest] if smallest is not None and known[smallest] <= room else [])


def record(
    file: AppendableStore,
    request: Request,
    run: RunBatch,
    finished: Callable[[Batch], None],
    disagree: Callable[[Disagreement], None],
) -> int:
    """Record all that the file does not have yet; returns how many tensors it had from an earlier time.

    ``finished`` is called after each batch is safe, ``disagree`` for every tensor that a later batch gives otherwise.
    Raises what ``run`` raises, and what AppendableStore.append raises.
    """
    done = frozenset(
        name
        for name in request.names
        if all((request.runner, number, name) in file.committed for number in range(request.iterations))
    )
    batches, shared = plan(request, done)
    for number, batch in enumerate(batches, 1):
        started, before = time.monotonic(), file.size
        again = [name for name in shared if name not in batch]
        for iteration, outputs in enumerate(run([*batch, *again])):
            _store(file, request.runner, iteration, batch, outputs)
            for name in again:
                first = file.array((request.runner, iteration, name))
                if first is not None and name in outputs and not same_values(outputs[name], first):
                    disagree(
                        Disagreement(name=name, iteration=iteration, batch=number, again=outputs[name], first=first)
                    )
            outputs.clear()  # a single one left keeps all memory of an engine (onnxruntime's arena)
        file.commit()
        seconds = time.monotonic() - started
        finished(
            Batch(
                number=number,
                count=len(batches),
                tensors=len(batch),
                bytes=file.size - before,
                seconds=seconds,
            )
        )
    return len(done)


def _store(file: AppendableStore, runner: int, iteration: int, batch: Sequence[str], outputs: dict[str, Array]) -> None:
    """Write a batch's tensors, each freed as soon as it is written; wide elements first, so that few bytes are lost."""
    wide_first = sorted((name for name in batch if name in outputs), key=lambda name: -outputs[name].dtype.alignment)
    for name in wide_first:
        file.append((runner, iteration, name), outputs.pop(name))
    for name in set(batch) - set(wide_first):
        file.append((runner, iteration, name), None)


# How many bytes the tensors of a model take, before any of them is asked for.


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
    by_shapes = {tuple(sorted((name, array.shape) for name, array in feed.items())): feed for feed in feeds}
    for feed in by_shapes.values():
        proto = load.parse(model, None)
        for info in proto.graph.input:
            if info.name in feed and info.type.HasField("tensor_type"):
                shape = info.type.tensor_type.shape
                shape.Clear()
                for dim in feed[info.name].shape:
                    shape.dim.add(dim_value=dim)
        types = infer.infer_types(proto)
        of_feed = {name: _static_size(types.get(name)) for name in names}
        unknown = [name for name in names if of_feed[name] is None]
        if unknown and index.opset:
            of_feed |= _measured(model, unknown, types, partial(run, feed=feed), limit)
        for name, size in of_feed.items():
            before = sizes[name]
            sizes[name] = None if before is None or size is None else max(before, size)
    return sizes


def _static_size(type_: TensorType | None) -> int | None:
    if type_ is None or type_.shape is None or not type_.is_static:
        return None
    shape = [dim for dim in type_.shape if isinstance(dim, int)]
    return math.prod(shape) * _TEXT if type_.elem == STRING else raw_size(type_.elem, shape)


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
    added: list[bytes] = []
    for output, name in shape_of.items():
        ends = string_field(_NODE_INPUT, raw(name)) + string_field(_NODE_OUTPUT, raw(output))
        added.append(string_field(_NODE, ends + string_field(_OP_TYPE, b"Shape")))
        added.append(string_field(_OUTPUT, value_info(output, TensorType(ELEM_OF_DTYPE["int64"], (None,)))))
    parts: list[bytes] = []
    for number, _, tag, start, end in fields(model):
        if number != _GRAPH:
            parts.append(model[tag:end])
            continue
        graph = [model[t:e] for inner, _, t, _, e in fields(model, start, end) if inner != _OUTPUT]
        parts.append(string_field(_GRAPH, b"".join([*graph, *added])))
    return b"".join(parts), shape_of
