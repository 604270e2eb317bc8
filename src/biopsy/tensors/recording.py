"""Recording more tensors than fit into memory: a batch of them at a time, each from a run of its own, into a
.safetensors file that grows tensor by tensor and is not lost when its process is killed.
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
from biopsy.model.index import index_bytes
from biopsy.model.parts import value_info
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, STRING, TensorType, raw_size
from biopsy.model.wire import fields, raw, string_field
from biopsy.processes.own_files import InUseError, open_locked, open_own, stands_at, unlock, user_key
from biopsy.processes.writing import cannot_write, make_as_private_as_new, make_folders_of, write_whole
from biopsy.tensors import container, safetensors_file, types
from biopsy.tensors.container import Container
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult, TensorsByName, same_values
from biopsy.text import line_of

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
            # Each is freed as soon as it is written; wide elements come first, so that few bytes are lost.
            given = [name for name in batch if name in outputs]
            for name in sorted(given, key=lambda name: -outputs[name].dtype.alignment):
                file.append((request.runner, iteration, name), outputs.pop(name))
            for name in set(batch).difference(given):
                file.append((request.runner, iteration, name), None)
            for name in again:
                first = file.array((request.runner, iteration, name))
                if first is not None and name in outputs and not same_values(outputs[name], first):
                    later = outputs[name]
                    disagree(Disagreement(name=name, iteration=iteration, batch=number, again=later, first=first))
            outputs.clear()  # a single one left keeps all memory of an engine (onnxruntime's arena)
        file.commit()
        added, seconds = file.size - before, time.monotonic() - started
        finished(Batch(number=number, count=len(batches), tensors=len(batch), bytes=added, seconds=seconds))
    return len(done)


ModelRun: TypeAlias = Callable[[bytes, Feed], Mapping[str, Array]]
"""Builds a serialized model and runs it once: the outputs by name. Raises EngineFailure."""

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
        static = {name: type_ for name in names if (type_ := types.get(name)) is not None and type_.is_static}
        of_feed = dict.fromkeys(names) | {name: _bytes_of(type_, type_.shape or ()) for name, type_ in static.items()}
        unknown = [name for name in names if of_feed[name] is None]
        if unknown and index.opset:
            of_feed |= _measured(model, unknown, types, lambda shown: run(shown, feed), limit)  # noqa: B023 - now
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
                type_ = types.get(name)
                is_known = type_ is not None and type_.elem in DTYPE_OF_ELEM
                element = max(_bytes_of(type_, [1]) or 0, 1) if type_ and is_known else _UNKNOWN_ELEMENT
                size = math.prod(outputs[output].tolist()) * element
                found[name], largest = size, max(size, largest)
        start += count
        count = max(min(2 * count, limit // largest), 1)
    return found


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


# The file that grows: each piece has a sealed line of JSON.

Place: TypeAlias = tuple[int, int, str]
"""Where a tensor belongs: number of the runner, number of the iteration, name."""

_FORM = 2
_SHAPE_ROOM = 128
"""Bytes for the shape of one tensor in the header, which is not known beforehand: twelve dimensions of nine digits."""

_PAGE = 4096
_PURPOSE = b"biopsy recording"


class _Span(NamedTuple):
    """Where the bytes of a tensor lie behind the header, and what they are."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class AppendableStore:
    """Tensors on their way into ``path``. Use it in a ``with``: what is committed stays for the next one to open it.

    ``identity`` says what is recorded (such as digests of model and inputs), ``places`` all tensors that are to come.
    Without an identity nobody goes on with it, and nothing stays. Raises UsageError if an unfinished recording of
    something else stands there, or one that this user did not make, if another process is at it, or if it cannot be
    written.
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
        """Whether the next one can go on with what is committed."""
        with ExitStack() as failed:
            self._data = failed.enter_context(self._opened())
            # Nobody has a seal of a key that nobody knows: without one of ours, whatever stands there is another's.
            try:
                self._lines = SealedLines(self._lines_path, key or os.urandom(32), _PURPOSE)
            except OSError as error:
                raise _in_the_way(path, self._lines_path, error) from error
            failed.callback(self._lines.close)
            try:
                if not self._resume(identity or {}):
                    self._begin(identity or {}, places)
                self._end = self._committed_end
                self._data.truncate(self._start + self._end)
                self._data.seek(self._start + self._end)
            except OSError as error:
                raise cannot_write(path, error) from error
            failed.pop_all()

    def _opened(self) -> BinaryIO:
        """The file of the tensors, which nobody else has."""
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
        """Where the header ends and the tensors begin."""
        return 8 + self._room

    @property
    def _committed_end(self) -> int:
        return max((span.end for span in self._spans.values() if span), default=0)

    @property
    def committed(self) -> frozenset[Place]:
        """The tensors that nothing can lose any more."""
        return frozenset(self._spans)

    @property
    def size(self) -> int:
        """Bytes of all tensors so far."""
        return self._end

    def append(self, place: Place, array: Array | None) -> None:
        """Write a tensor behind the others; None for one that the engine does not give.

        Raises DataError if it has a type that cannot be saved, UsageError if the disk is full.
        """
        if array is None:
            self._pending[place] = None
            return
        stored, name = types.stored_form(types.storable(place[2], array))
        gap = -self._end % stored.dtype.alignment
        try:
            self._data.write(bytes(gap))
            self._data.write(types.as_bytes(stored))
        except OSError as error:
            raise cannot_write(self._path, error) from error
        begin = self._end + gap
        self._end = begin + stored.nbytes
        self._pending[place] = _Span(name, stored.shape, begin, self._end)

    def commit(self) -> None:
        """Keep what has been appended since the last time, whatever happens to this process or machine."""
        line = {"tensors": [[*place, *(span or [None] * 4)] for place, span in self._pending.items()]}
        try:
            self._data.flush()
            if self.stays:
                os.fsync(self._data.fileno())
                self._lines.append(line)
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self._spans |= self._pending
        self._pending = {}

    def array(self, place: Place) -> Array | None:
        """A read-only view of a committed tensor, of the mapped file; None if the engine did not give it."""
        span = self._spans[place]
        if span is None:
            return None
        if self._map is None or len(self._map) < self._start + span.end:
            self._map = self._mapped()
        at = self._start + span.start
        found: Array = np.ndarray(span.shape, types.stored_type(span.dtype), buffer=self._map, offset=at)
        return types.true_form(found, span.dtype)

    def outputs(self, runner: int, iteration: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The committed tensors of one iteration, in the order of ``names``, each read when it is asked for."""
        places = {name: (runner, iteration, name) for name in names}
        return _Views(self, {name: place for name, place in places.items() if self._spans.get(place) is not None})

    def finish(self, results: Mapping[int, RunnerResult]) -> None:
        """Make the file what it is to be: ``results`` by the number of the runner, their outputs from ``outputs``.

        Tensors of other runners stay in it without a name. The file is closed, and can be read on.
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
        # The format allows no gaps: what has no name is described as bytes.
        at = 0
        for span in (*sorted(used, key=lambda span: span.start), _Span("", (), self._end, self._end)):
            if span.start > at:
                unused = {"dtype": "U8", "shape": [span.start - at], "data_offsets": [at, span.start]}
                entries[f"#unused{len(entries)}"] = unused
            at = max(at, span.end)
        header = safetensors_file.header_text(entries)
        try:
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
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self.close()

    def discard(self) -> None:
        """Remove the files. What was committed can be read on, as long as this process lives."""
        self.stays = False
        self.close()

    def close(self) -> None:
        """Let go of the file; what is committed stays and can be read on. No file stays if that is nothing."""
        if self._data.closed:
            return
        if self._spans:
            self._map = self._mapped()
        if not (self._spans and self.stays) and stands_at(self._data_path, self._data.fileno()):  # it is no result yet
            self._data_path.unlink()
            self._lines.remove()
        self._lines.close()
        with suppress(OSError):  # a full disk, told of when it was written to
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
        there = os.fstat(self._data.fileno()).st_size
        if not lines or there == 0:
            return False
        head = lines.pop(0)
        differ = [key for key in identity if head["identity"].get(key) != identity[key]]
        if head["recording"] != _FORM or differ:
            raise self._refusal(f"it is not of the same {' and '.join(differ) or 'version'}")
        self._room = head["room"]
        for line in lines:
            for runner, iteration, name, dtype, shape, start, end in line["tensors"]:
                span = None if dtype is None else _Span(dtype, tuple(shape), start, end)
                if span is not None and self._start + span.end > there:
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
        for place in places:  # its entry in the header and its place in the index, if its shape is usual
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
    """Tensors of a growing file by name; each is a view made when it is asked for."""

    def __init__(self, file: AppendableStore, places: Mapping[str, Place]) -> None:
        super().__init__(places)
        self._file = file

    def __getitem__(self, name: str) -> Array:
        array = self._file.array(self.sources[name])
        assert array is not None
        return array


def results_of(file: AppendableStore, names: Sequence[str], runner: int, label: str, iterations: int) -> RunnerResult:
    """What a runner gave, read from the file tensor by tensor as it is asked for."""
    return RunnerResult(label, tuple(Iteration(file.outputs(runner, number, names)) for number in range(iterations)))


def _in_the_way(path: Path, beside: Path, error: OSError) -> errors.UsageError:
    """The error that tells why a file beside ``path`` cannot be used."""
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
    """Lines that were not written with this key, or are not where they were written."""


class SealedLines:
    """An open file of lines of JSON, each with a seal: a checksum, under a key, over it and all that stands before it.

    Who lacks the key can write no line that is read, nor move one. A process that is killed leaves at most a last line
    without its end, which is cut off. ``purpose``, of at most 16 bytes, tells them from others under the same key.
    """

    def __init__(self, path: Path, key: bytes, purpose: bytes) -> None:
        """Made if there is none; nothing in it is changed. Raises OSError as ``open_own`` does."""
        self.path = path
        self._key, self._purpose = key, purpose
        self._seal = b""
        self._stream = os.fdopen(open_own(path, mode=0o666), "r+b")
        make_as_private_as_new(self._stream.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All lines. Raises ForeignError, nothing being changed then, or OSError."""
        if os.fstat(self._stream.fileno()).st_size > _MOST_BYTES:
            raise ForeignError
        self._stream.seek(0)
        data = self._stream.read(_MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        lines = []
        self._seal = b""
        for line in whole.splitlines(keepends=True):
            body, end = line[:-_SIZE_OF_END], line[-_SIZE_OF_END:]
            seal = self._sealed(body)
            if not hmac.compare_digest(end, _END % seal):
                raise ForeignError
            self._seal = seal
            lines.append(json.loads(line))
        self._stream.truncate(len(whole))
        self._stream.seek(len(whole))
        return lines

    def begin(self, line: Mapping[str, Any]) -> None:
        """Start over, with this line."""
        self._stream.seek(0)
        self._stream.truncate()
        self._seal = b""
        self.append(line)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line: the disk has it when this returns. Raises OSError."""
        body = json.dumps(line, separators=(",", ":")).encode("ascii")[:-1]
        seal = self._sealed(body)
        self._stream.write(body + _END % seal)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._seal = seal

    def close(self) -> None:
        """Let go of the file, as it is."""
        with suppress(OSError):  # a full disk, told of when it was written to
            self._stream.close()

    def remove(self) -> None:
        """Delete the file and let go of it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _sealed(self, body: bytes) -> bytes:
        """The seal of a line, without what it ends with, after those that were read or written."""
        hashed = hashlib.blake2b(self._seal + body, key=self._key, person=self._purpose, digest_size=16)
        return hashed.hexdigest().encode("ascii")
