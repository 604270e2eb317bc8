"""Records more tensors than fit into memory: in batches, each from a run of its own, into a .safetensors file that
grows tensor by tensor and survives the death of the process.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.model import infer, load
from biopsy.model.extract import GRAPH_OUTPUT, with_outputs
from biopsy.model.index import index_bytes
from biopsy.model.parts import value_info
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, STRING, TensorType, raw_size
from biopsy.model.wire import raw, string_field
from biopsy.processes.own_files import InUseError, open_locked, open_own, stands_at, unlock, user_key
from biopsy.processes.writing import cannot_write, make_as_private_as_new, make_folders_of, write_whole, writing_to
from biopsy.tensors import container, safetensors_file, types
from biopsy.tensors.container import Container
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult, TensorsByName, same_values
from biopsy.text import line_of

RunBatch: TypeAlias = Callable[[Sequence[str]], Iterable[dict[str, Array]]]
"""Runs the model with these tensors as its outputs; returns the outputs of each iteration."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to record: the tensors ``names`` with their ``sizes`` in bytes (None: unknown), in all ``iterations``.

    ``own`` are the outputs of the model itself among them. ``limit`` is the greatest number of bytes of tensors in
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
    """A finished batch: ``number`` (from 1) of ``count``, with the tensors and bytes that it added and its seconds."""

    number: int
    count: int
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A tensor with different values in two batches. ``again``, from the later one, is only valid during the call."""

    name: str
    iteration: int
    batch: int
    again: Array
    first: Array


def plan(request: Request, done: frozenset[str] = frozenset()) -> tuple[list[list[str]], list[str]]:
    """The batches of tensors still to record, and the tensors that every batch repeats.

    Tensors stay in their order. Each tensor of unknown size has a batch of its own.
    """
    shared = _shared(request)
    room = max(request.limit - sum(request.sizes[name] or 0 for name in shared), 1)
    batches: list[list[str]] = []
    remaining = -1  # bytes of the last batch
    for name in dict.fromkeys((*shared, *request.names)):
        if name in done:
            continue
        size = 0 if name in shared else request.sizes[name]
        if size is None or size > remaining:
            batches.append([])
            remaining = room
        batches[-1].append(name)
        remaining = -1 if size is None else remaining - size
    return batches, shared


def _shared(request: Request) -> list[str]:
    """The model's own outputs, smallest first, up to a quarter of the limit; else the smallest tensor of all."""
    sizes = {name: size for name in request.names if (size := request.sizes[name]) is not None}
    room = request.limit // 4
    shared = []
    for name in sorted((name for name in request.own if name in sizes), key=sizes.__getitem__):
        if sizes[name] <= room:
            shared.append(name)
            room -= sizes[name]
    smallest = min(sizes, key=sizes.__getitem__, default=None)
    return shared or ([smallest] if smallest is not None and sizes[smallest] <= room else [])


def record(
    file: AppendableStore,
    request: Request,
    run: RunBatch,
    finished: Callable[[Batch], None],
    disagree: Callable[[Disagreement], None],
) -> int:
    """Record all tensors that the file lacks; returns the number of tensors that it already had.

    ``finished`` is called after each committed batch, ``disagree`` for every tensor that a later batch computes
    differently. Raises what ``run`` and AppendableStore.append raise.
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
            # Each is freed as soon as it is written; wide elements come first, so that alignment wastes few bytes.
            present = [name for name in batch if name in outputs]
            for name in sorted(present, key=lambda name: -outputs[name].dtype.alignment):
                file.append((request.runner, iteration, name), outputs.pop(name))
            for name in set(batch).difference(present):
                file.append((request.runner, iteration, name), None)
            for name in again:
                first = file.array((request.runner, iteration, name))
                if first is not None and name in outputs and not same_values(outputs[name], first):
                    later = outputs[name]
                    disagree(Disagreement(name=name, iteration=iteration, batch=number, again=later, first=first))
            outputs.clear()  # one array would keep all memory of an engine alive (onnxruntime's arena)
        file.commit()
        added, seconds = file.size - before, time.monotonic() - started
        finished(Batch(number=number, count=len(batches), tensors=len(batch), bytes=added, seconds=seconds))
    return len(done)


ModelRun: TypeAlias = Callable[[bytes, Feed], Mapping[str, Array]]
"""Builds a serialized model and runs it once; returns the outputs by name. Raises EngineFailure."""

_NODE = 1  # field number in GraphProto
_NODE_INPUT, _NODE_OUTPUT, _OP_TYPE = 1, 2, 4  # field numbers in NodeProto
_UNKNOWN_ELEMENT = 8
"""Bytes of an element of unknown type: those of the widest type except complex128."""

_TEXT = 64
"""Bytes of a string in NumPy: a guess."""


def tensor_sizes(model: bytes, feeds: Sequence[Feed], run: ModelRun, limit: int) -> dict[str, int | None]:
    """Bytes of every output of a serialized model, the greatest in any of the ``feeds``; None if unknown.

    onnx infers them from the shapes of the feeds. For tensors that it cannot infer, the model is run with their
    *shapes* as its only outputs: first of one tensor, then of more while they are small, because an engine may keep a
    tensor in memory to compute its shape. ``limit`` is the greatest number of bytes of these tensors at a time.
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
        static = {name: type_ for name in names if (type_ := types.get(name)) is not None and type_.is_static}
        of_feed = dict.fromkeys(names) | {name: _bytes_of(type_, type_.shape or ()) for name, type_ in static.items()}
        unknown = [name for name in names if of_feed[name] is None]
        if unknown and index.opset:
            of_feed |= _measured(model, unknown, types, lambda changed: run(changed, feed), limit)  # noqa: B023 - now
        for name, size in of_feed.items():
            before = sizes[name]
            sizes[name] = None if before is None or size is None else max(before, size)
    return sizes


def _bytes_of(type_: TensorType, shape: Sequence[Any]) -> int | None:
    return math.prod(shape) * _TEXT if type_.elem == STRING else raw_size(type_.elem, shape)


def _measured(
    model: bytes,
    names: Sequence[str],
    types: Mapping[str, TensorType],
    run: Callable[[bytes], Mapping[str, Array]],
    limit: int,
) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    start, count, largest = 0, 1, 1
    while start < len(names):
        changed, shape_of = with_shapes_as_outputs(model, names[start : start + count])
        try:
            outputs = run(changed)
        except (errors.EngineFailure, errors.TooMuchMemory):
            return sizes
        for output, name in shape_of.items():
            if output in outputs:
                type_ = types.get(name)
                is_known = type_ is not None and type_.elem in DTYPE_OF_ELEM
                element = max(_bytes_of(type_, [1]) or 0, 1) if type_ and is_known else _UNKNOWN_ELEMENT
                size = math.prod(outputs[output].tolist()) * element
                sizes[name], largest = size, max(size, largest)
        start += count
        count = max(min(2 * count, limit // largest), 1)
    return sizes


def with_shapes_as_outputs(model: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """The serialized model with the shapes of some tensors as its only outputs; and output -> tensor."""
    taken = index_bytes(model).ids
    free = (name for number in range(len(taken) + len(names) + 1) if (name := f"shape {number}") not in taken)
    shape_of = dict(zip(free, names, strict=False))
    added: list[bytes] = []
    for output, name in shape_of.items():
        ends = string_field(_NODE_INPUT, raw(name)) + string_field(_NODE_OUTPUT, raw(output))
        added.append(string_field(_NODE, ends + string_field(_OP_TYPE, b"Shape")))
        added.append(string_field(GRAPH_OUTPUT, value_info(output, TensorType(ELEM_OF_DTYPE["int64"], (None,)))))
    return with_outputs(model, added), shape_of


Place: TypeAlias = tuple[int, int, str]
"""The place of a tensor: number of the runner, number of the iteration, name."""

_FORM = 2
_SHAPE_ROOM = 128
"""Bytes in the header for the shape of one tensor, which is not known in advance: twelve dimensions of nine digits."""

_PAGE = 4096
_PURPOSE = b"biopsy recording"


class _Span(NamedTuple):
    """Type and shape of a stored tensor, and its bytes: from ``start`` to ``end`` after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class AppendableStore:
    """A growing file of tensors that becomes ``path``. A context manager; what is committed can be resumed later.

    ``identity`` says what is recorded (such as digests of model and inputs), ``places`` are all expected tensors.
    Without an identity, it cannot be resumed, and no file stays. Raises UsageError if there is an unfinished recording
    of something else or by another user, if another process is recording into it, or if it cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, str] | None, places: Sequence[Place]) -> None:
        self._path = path
        self._data_path = path.with_name(f".{path.name}.recording")
        self._lines_path = path.with_name(f".{path.name}.recording.json")
        self._spans: dict[Place, _Span | None] = {}
        self._pending: dict[Place, _Span | None] = {}
        self._map: mmap.mmap | None = None
        self._room = 0
        key = None if identity is None else user_key()
        self.stays = key is not None
        """Whether what is committed can be resumed later."""
        with ExitStack() as failed:
            self._data = failed.enter_context(self._opened())
            # Without a key, take a random one, by which no lines that are already there can be sealed.
            try:
                self._lines = SealedLines(self._lines_path, key or os.urandom(32), _PURPOSE)
            except OSError as error:
                raise _in_the_way(path, self._lines_path, error) from error
            failed.callback(self._lines.close)
            with writing_to(path):
                if not self._resume(identity or {}):
                    self._begin(identity or {}, places)
                self._end = self._committed_end
                self._data.truncate(self._start + self._end)
                self._data.seek(self._start + self._end)
            failed.pop_all()

    def _opened(self) -> BinaryIO:
        """The file of the tensors, locked."""
        try:
            make_folders_of(self._data_path)
            descriptor = open_locked(self._data_path, 0, mode=0o666)
        except InUseError as error:
            raise errors.UsageError(f"another process is recording into {self._path}") from error
        except OSError as error:
            raise _in_the_way(self._path, self._data_path, error) from error
        make_as_private_as_new(descriptor)
        return os.fdopen(descriptor, "r+b")

    def __enter__(self) -> AppendableStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _start(self) -> int:
        """The offset of the tensors, after the header."""
        return 8 + self._room

    @property
    def _committed_end(self) -> int:
        return max((span.end for span in self._spans.values() if span), default=0)

    @property
    def committed(self) -> frozenset[Place]:
        """The committed tensors."""
        return frozenset(self._spans)

    @property
    def size(self) -> int:
        """Bytes of all tensors so far."""
        return self._end

    def append(self, place: Place, array: Array | None) -> None:
        """Write a tensor after the others; None for one that the engine does not return.

        Raises DataError if its type cannot be saved, UsageError if the disk is full.
        """
        if array is None:
            self._pending[place] = None
            return
        stored, name = types.stored_form(types.storable(place[2], array))
        gap = -self._end % stored.dtype.alignment
        with writing_to(self._path):
            self._data.write(bytes(gap))
            self._data.write(types.as_bytes(stored))
        begin = self._end + gap
        self._end = begin + stored.nbytes
        self._pending[place] = _Span(name, stored.shape, begin, self._end)

    def commit(self) -> None:
        """Make appended tensors survive the death of this process or machine."""
        line = {"tensors": [[*place, *(span or [None] * 4)] for place, span in self._pending.items()]}
        with writing_to(self._path):
            self._data.flush()
            if self.stays:
                os.fsync(self._data.fileno())
                self._lines.append(line)
        self._spans |= self._pending
        self._pending = {}

    def array(self, place: Place) -> Array | None:
        """A committed tensor as a read-only view of the mapped file; None if the engine did not return it."""
        span = self._spans[place]
        if span is None:
            return None
        if self._map is None or len(self._map) < self._start + span.end:
            self._map = self._mapped()
        at = self._start + span.start
        stored: Array = np.ndarray(span.shape, types.stored_type(span.dtype), buffer=self._map, offset=at)
        return types.true_form(stored, span.dtype)

    def outputs(self, runner: int, iteration: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The committed tensors of one iteration, in the order of ``names``, each read when it is accessed."""
        places = {name: (runner, iteration, name) for name in names}
        return _Views(self, {name: place for name, place in places.items() if self._spans.get(place) is not None})

    def finish(self, results: Mapping[int, RunnerResult]) -> None:
        """Turn the file into a .safetensors file with ``results``, by number of the runner, and close it.

        Their outputs come from ``outputs`` and can still be read. Tensors of other runners stay in it without a name.
        """
        numbers = list(results)
        packed = container.pack(Container("results", tuple(results.values())), safetensors_file.FORM)
        entries: dict[str, Any] = {safetensors_file.METADATA: {safetensors_file.INDEX: packed.index}}
        used = []
        for key, (runner, iteration, name) in packed.places.items():
            span = self._spans[numbers[runner], iteration, name]
            assert span is not None
            entries[key] = safetensors_file.described(packed.arrays[key], span.start)
            used.append(span)
        # The format allows no gaps, so bytes without a name have an entry, too.
        at = 0
        for span in (*sorted(used, key=lambda span: span.start), _Span("", (), self._end, self._end)):
            if span.start > at:
                unused = {"dtype": "U8", "shape": [span.start - at], "data_offsets": [at, span.start]}
                entries[f"#unused{len(entries)}"] = unused
            at = max(at, span.end)
        header = safetensors_file.header_text(entries)
        with writing_to(self._path):
            if len(header) <= self._room:
                self._data.seek(0)
                self._data.write(self._room.to_bytes(8, "little") + header.ljust(self._room))
                self._data.flush()
                os.fsync(self._data.fileno())
            else:
                self._data.seek(self._start)
                values = iter(lambda: self._data.read(1 << 20), b"")
                write_whole(self._data_path, chain([len(header).to_bytes(8, "little"), header], values))
            self._data_path.replace(self._path)
            self._lines.remove()
        self.close()

    def discard(self) -> None:
        """Remove the files. This process can still read what was committed."""
        self.stays = False
        self.close()

    def close(self) -> None:
        """Close the file, and remove it if nothing is committed. What is committed can still be read."""
        if self._data.closed:
            return
        if self._spans:
            self._map = self._mapped()
        if not (self._spans and self.stays) and stands_at(self._data_path, self._data.fileno()):  # not yet finished
            self._data_path.unlink()
            self._lines.remove()
        self._lines.close()
        with suppress(OSError):  # a full disk, for which an earlier write has raised
            unlock(self._data.fileno())  # the map holds the file open
            self._data.close()

    def _mapped(self) -> mmap.mmap:
        """The file up to the last committed tensor."""
        return mmap.mmap(self._data.fileno(), self._start + self._committed_end, access=mmap.ACCESS_READ)

    def _resume(self, identity: Mapping[str, str]) -> bool:
        """Take over what an earlier process of this user has committed; False if there is nothing."""
        try:
            lines = self._lines.read()
        except ForeignError:
            raise self._refusal("nothing shows that you made it, with this version: it is not read") from None
        size = os.fstat(self._data.fileno()).st_size
        if not lines or size == 0:
            return False
        head = lines.pop(0)
        differing = [key for key in identity if head["identity"].get(key) != identity[key]]
        if head["recording"] != _FORM or differing:
            raise self._refusal(f"it is not of the same {' and '.join(differing) or 'version'}")
        self._room = head["room"]
        for line in lines:
            for runner, iteration, name, dtype, shape, start, end in line["tensors"]:
                span = None if dtype is None else _Span(dtype, tuple(shape), start, end)
                if span is not None and self._start + span.end > size:
                    raise self._refusal("some of it is missing")
                self._spans[runner, iteration, name] = span
        return True

    def _refusal(self, reason: str) -> errors.UsageError:
        return errors.UsageError(
            f"an unfinished recording stands at {self._data_path}, and {reason}",
            next_steps=[
                f"{line_of(['rm', '--', str(self._data_path), str(self._lines_path)])}    to begin anew",
                "or name another file",
            ],
        )

    def _begin(self, identity: Mapping[str, str], places: Sequence[Place]) -> None:
        needed = 1000
        for place in places:  # its entries in the header and the index, with a usual shape
            key = "/".join(map(str, place))
            entry = json.dumps({key: {"dtype": "F8_E4M3", "data_offsets": [10**15, 10**15]}}, ensure_ascii=False)
            indexed = json.dumps(json.dumps([place[2], key, "float8_e8m0fnu"]))
            needed += len(entry.encode("utf-8", "surrogatepass")) + len(indexed) + _SHAPE_ROOM
        self._room = needed + (-(8 + needed) % _PAGE)
        self._data.truncate(0)
        self._data.write(bytes(self._start))
        self._data.flush()
        if self.stays:
            self._lines.begin({"recording": _FORM, "identity": dict(identity), "room": self._room})


class _Views(TensorsByName[Place]):
    """Tensors of a growing file by name, each mapped when it is accessed."""

    def __init__(self, file: AppendableStore, places: Mapping[str, Place]) -> None:
        super().__init__(places)
        self._file = file

    def __getitem__(self, name: str) -> Array:
        array = self._file.array(self.sources[name])
        assert array is not None
        return array


def results_of(file: AppendableStore, names: Sequence[str], runner: int, label: str, iterations: int) -> RunnerResult:
    """The recorded outputs of a runner, each read from the file when it is accessed."""
    return RunnerResult(label, tuple(Iteration(file.outputs(runner, number, names)) for number in range(iterations)))


def _in_the_way(path: Path, beside: Path, error: OSError) -> errors.UsageError:
    """The error for a file ``beside`` the path that cannot be used."""
    if not os.path.lexists(beside):
        return cannot_write(path, error)
    return errors.UsageError(
        f"cannot write {path}: {beside} is in the way: {error.strerror or error}",
        next_steps=["name another file"],
    )


_MOST_BYTES = 1 << 30
_END = b',"seal":"%s"}\n'
_SIZE_OF_END = len(_END % bytes(32))


class ForeignError(Exception):
    """Lines that were not written with this key, or were moved."""


class SealedLines:
    """An open file of lines of JSON, each with a seal: a keyed checksum of it and all lines before it.

    Nobody can write or move a line without the key. A killed process leaves at most an incomplete last line, which is
    cut off. ``purpose``, of at most 16 bytes, makes seals differ from others with the same key.
    """

    def __init__(self, path: Path, key: bytes, purpose: bytes) -> None:
        """Open the file, or create it; its content is not changed. Raises OSError as ``open_own``."""
        self.path = path
        self._key, self._purpose = key, purpose
        self._seal = b""
        self._stream = os.fdopen(open_own(path, mode=0o666), "r+b")
        make_as_private_as_new(self._stream.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All lines. Raises ForeignError without changing the file, or OSError."""
        if os.fstat(self._stream.fileno()).st_size > _MOST_BYTES:
            raise ForeignError
        self._stream.seek(0)
        data = self._stream.read(_MOST_BYTES)
        complete = data[: data.rfind(b"\n") + 1]
        lines = []
        self._seal = b""
        for line in complete.splitlines(keepends=True):
            body, end = line[:-_SIZE_OF_END], line[-_SIZE_OF_END:]
            seal = self._sealed(body)
            if not hmac.compare_digest(end, _END % seal):
                raise ForeignError
            self._seal = seal
            lines.append(json.loads(line))
        self._stream.truncate(len(complete))
        self._stream.seek(len(complete))
        return lines

    def begin(self, line: Mapping[str, Any]) -> None:
        """Replace all lines by this one."""
        self._stream.seek(0)
        self._stream.truncate()
        self._seal = b""
        self.append(line)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line, which is on the disk when this returns. Raises OSError."""
        body = json.dumps(line, separators=(",", ":")).encode("ascii")[:-1]
        seal = self._sealed(body)
        self._stream.write(body + _END % seal)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._seal = seal

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk, for which an earlier write has raised
            self._stream.close()

    def remove(self) -> None:
        """Delete the file and close it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _sealed(self, body: bytes) -> bytes:
        """The seal of a line (given without its end) that follows the lines read or written so far."""
        hashed = hashlib.blake2b(self._seal + body, key=self._key, person=self._purpose, digest_size=16)
        return hashed.hexdigest().encode("ascii")
