"""Polygraphy's JSON files of inputs and outputs (as of version 0.53.6; its old form of typed objects is read, too).

Inputs are a list of iterations, ``[{name: ndarray}, ...]``, or one bare object; outputs are a ``RunResults`` object::

    {"lst": [[runner, [{"outputs": {name: {"values": ndarray, "polygraphy_class": "LazyArray"}},
                        "runtime": seconds, "runner_name": runner, "polygraphy_class": "IterationResult"}, ...]], ...],
     "polygraphy_class": "RunResults"}

An ndarray is ``{"array": base64 of a whole .npy file, "polygraphy_class": "ndarray"}``. Types that .npy cannot name
(bfloat16, float8, int4, ...) are widened without loss to float32, int8 or uint8, which Polygraphy then reads; from one
more key, ``"biopsy_dtype"``, which Polygraphy ignores, biopsy restores the type.

Reading keeps long base64 texts in the file: the rest of the JSON, the skeleton, is parsed as usual, and a tensor is
decoded when it is accessed. Inside a JSON string, every quote has a backslash before it. So ``"array"`` without one is
a string of its own, or the file is not JSON; if a colon and a quote follow, it is a key with a string value, which ends
at the next quote. In the skeleton, a mark that nobody can guess takes the place of a long value of this key. An error
anywhere in the file stays an error, since all but the insides of strings is parsed.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from biopsy import errors
from biopsy.tensors import npz, types
from biopsy.tensors.container import Container, SteadyFile, SteadyFileRead, UnreadableFileError, placed, seconds_of
from biopsy.tensors.results import (
    Array,
    ChosenTensors,
    Feed,
    Iteration,
    RunnerResult,
    TensorForm,
    TensorsByName,
    form_of_array,
)

CLASS = "polygraphy_class"
OLD_CLASS = "__polygraphy_encoded_"
OLD_MARK = "polygraphy_serialized_json_type"
DTYPE = "biopsy_dtype"

_INDENT = 4


def parts(container: Container, *, bare: bool = False) -> Iterator[bytes]:
    """The bytes of a JSON file, piece by piece. ``bare`` writes one feed without the list around it.

    A tensor of another JSON file is copied as text, if it would be written in the same way. Raises DataError with
    iteration and tensor if one cannot be saved or read.
    """
    writing = _Writing()
    feeds: list[dict[str, str]] = []
    runners = []
    for runner in container.runners:
        trees = []
        for number, iteration in enumerate(runner.iterations):
            marks = writing.marks(number, iteration.outputs)
            feeds.append(marks)
            outputs = {name: {"values": mark, CLASS: "LazyArray"} for name, mark in marks.items()}
            tree = {"outputs": outputs, "runtime": iteration.runtime, "runner_name": runner.runner}
            trees.append({**tree, CLASS: "IterationResult"})
        runners.append([runner.runner, trees])
    if container.kind == "results":
        yield from writing.pieces({"lst": runners, CLASS: "RunResults"})
    else:
        yield from writing.pieces(feeds[0] if bare else feeds)


class _Writing:
    """Writes a tree with marks in place of its tensors, of which only one at a time is in memory."""

    def __init__(self) -> None:
        self._nonce = os.urandom(16).hex()
        self._marked: list[tuple[int, Feed, str]] = []

    def marks(self, number: int, tensors: Feed) -> dict[str, str]:
        """A mark for each tensor of an iteration, by name."""
        first = len(self._marked)
        self._marked += [(number, tensors, name) for name in tensors]
        return {name: f"{self._nonce}:{position}" for position, name in enumerate(tensors, first)}

    def pieces(self, tree: Any) -> Iterator[bytes]:
        """The text of a tree, with the tensors in place of the marks."""
        pieces = re.split(f'"{self._nonce}:([0-9]+)"', json.dumps(tree, indent=_INDENT))
        yield pieces[0].encode("ascii")
        for before, mark, after in zip(pieces[::2], pieces[1::2], pieces[2::2], strict=False):
            line = before[before.rfind("\n") + 1 :]
            number, tensors, name = self._marked[int(mark)]
            with placed(f"iteration {number}"):
                yield from self._tensor(tensors, name, "\n" + line[: len(line) - len(line.lstrip())])
            yield after.encode("ascii")

    def _tensor(self, tensors: Feed, name: str, new_line: str) -> Iterator[bytes]:
        """The JSON object of one tensor, with ``new_line`` before each line."""
        text = _text_of(tensors, name)
        tree = {"array": self._nonce, CLASS: "ndarray"} | ({} if text.dtype is None else {DTYPE: text.dtype})
        before, after = json.dumps(tree, indent=_INDENT).replace("\n", new_line).split(self._nonce)
        yield before.encode("ascii")
        yield from text.pieces
        yield after.encode("ascii")


def _text_of(tensors: Feed, name: str) -> Copy:
    """A tensor's text in another file, or else its values encoded."""
    while isinstance(tensors, ChosenTensors):
        tensors = tensors.sources[name]
    if isinstance(tensors, LazyTensors) and (copy := tensors.copy(name)) is not None:
        return copy
    array = types.storable(name, tensors[name])
    stored, dtype = types.stored_form(array)
    needs_name = types.is_extended(array.dtype) or stored is not array
    return Copy(encoded(types.widened(stored)), dtype if needs_name else None)


@dataclass(frozen=True)
class _Damaged:
    """A damaged value, whose error is raised later, when the names around it are known."""

    error: errors.DataError


@dataclass(frozen=True)
class _TypedObject:
    """A JSON object with a class of Polygraphy's."""

    kind: str
    tree: Mapping[str, Any]


def read(path: Path) -> Container:
    """The contents of a JSON file of inputs or outputs; arrays are read-only, and decoded when they are accessed.

    Raises DataError with iteration and tensor if the file is damaged, is not a file of Polygraphy's, or holds torch
    tensors. Accessing a tensor raises it, too, if the tensor is damaged or the file has changed.
    """
    try:
        skeleton = skeleton_of(SteadyFile(path))
    except OSError as error:
        raise errors.DataError(f"it cannot be read: {error.strerror}") from error
    tree = skeleton.parsed(partial(_object_value, skeleton.left_out))
    if isinstance(tree, _Damaged):
        raise tree.error
    if isinstance(tree, _TypedObject) and tree.kind == "RunResults":
        runners, entries = [], tree.tree.get("lst")
        for entry in entries if isinstance(entries, list) else [None]:
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
                raise errors.DataError("its list of runners is damaged")
            iterations = []
            for number, iteration in enumerate(entry[1]):
                place = f"runner {entry[0]!r}, iteration {number}"
                if not isinstance(iteration, _TypedObject) or iteration.kind != "IterationResult":
                    raise errors.DataError(f"{place}: it is not an IterationResult")
                tensors = _tensors(path, place, iteration.tree.get("outputs") or {})
                iterations.append(Iteration(tensors, seconds_of(iteration.tree.get("runtime"))))
            runners.append(RunnerResult(str(entry[0]), tuple(iterations)))
        return Container("results", tuple(runners))
    feeds = tree if isinstance(tree, list) else [tree]
    iterations = [Iteration(_tensors(path, f"iteration {number}", feed)) for number, feed in enumerate(feeds)]
    return Container("feeds", (RunnerResult(path.stem, tuple(iterations)),))


def _object_value(left_out: Mapping[str, Text], tree: dict[str, Any]) -> Any:
    """The value of a JSON object; a hook that is called for inner objects first, so that their text is soon freed."""
    old_keys = (key for key, value in tree.items() if value == OLD_MARK and key.startswith(OLD_CLASS))
    kind = next((key.removeprefix(OLD_CLASS) for key in old_keys), tree.get(CLASS))
    text = tree.get("array")
    if kind == "ndarray":
        if not isinstance(text, str):
            return _Damaged(errors.DataError("its array is not text"))
        dtype = str(tree[DTYPE]) if DTYPE in tree else None
        return Base64Tensor(left_out.get(text) or TextInMemory(json.dumps(text)[1:-1].encode("ascii")), dtype)
    if isinstance(text, str) and text in left_out:
        tree["array"] = _whole_text(left_out[text])
    if not isinstance(kind, str):
        return tree
    if kind in {"LazyArray", "LazyNumpyArray"}:
        return tree.get("values")
    if kind in {"IterationResult", "RunResults"}:
        return _TypedObject(kind, tree)
    if kind == "Tensor":
        problem = "a torch.Tensor is stored as a pickle, which could run code: it is not read"
        return _Damaged(errors.DataError(problem, next_steps=["save numpy arrays instead: tensor.cpu().numpy()"]))
    return _Damaged(errors.DataError(f"it holds an object of type {kind}, which is neither inputs nor outputs"))


def _whole_text(text: Text) -> str:
    """A long text that belongs to no tensor, read from the file."""
    with text.opened() as read:
        data = read(0, text.size)
    try:
        return str(json.loads(b'"' + data + b'"'))
    except ValueError as error:
        raise errors.DataError(f"it is not a JSON file: a text of {text.size} bytes is damaged: {error}") from error


def _tensors(path: Path, place: str, tree: Any) -> LazyTensors:
    with placed(place):
        if isinstance(tree, _Damaged):
            raise tree.error
        if not isinstance(tree, dict):
            raise errors.DataError("it is not an object of named tensors")
        for name, value in tree.items():
            with placed(f"tensor {name!r}"):
                if isinstance(value, _Damaged):
                    raise value.error
                if not isinstance(value, Base64Tensor):
                    raise errors.DataError("it is not an array")
    return LazyTensors(tree, f"cannot read {path}: {place}")


_T = TypeVar("_T")

_NPY = base64.b64encode(npz.MAGIC)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PIECE = 1 << 18


@dataclass(frozen=True)
class Base64Tensor:
    """A .npy or .npz file as base64 ``text``; ``dtype`` is the true type of its elements, if .npy cannot name it."""

    text: Text
    dtype: str | None = None

    def array(self) -> Array:
        """The tensor, read-only. Raises DataError if the text is damaged, or its file has changed."""
        array: Array = self.decoded(lambda npy: npz.read_npy(npy, npy.size), lambda array: array)
        if self.dtype is None:
            return array
        if self.dtype.startswith(types.TERMINATED):
            return types.true_form(array, self.dtype)
        true = array.astype(_true_form(form_of_array(array), self.dtype).dtype)
        true.flags.writeable = False
        return true

    def form(self) -> TensorForm:
        """Type and shape, from the first characters if possible. Raises DataError as ``array``."""
        stored = self.decoded(lambda stream: npz.form(stream, stream.size), form_of_array)
        return _true_form(stored, self.dtype)

    def copied(self) -> Iterator[bytes]:
        """The text, piece by piece. Raises DataError if it has a character that is not of base64."""
        size = self.text.size
        with self.text.opened() as read:
            digits = size - _padding(read, size)
            for offset in range(0, size, _PIECE):
                piece = read(offset, min(_PIECE, size - offset))
                if piece[: max(digits - offset, 0)].translate(None, _ALPHABET):
                    raise _damaged("it holds other characters")
                yield piece

    def decoded(self, by_stream: Callable[[_Decoding], _T], by_array: Callable[[Array], _T]) -> _T:
        """Decode the text: piece by piece, or at once if it has backslashes or an old form, latin-1 or a .npz file.

        Some programs write a backslash before each slash.
        """
        with self.text.opened() as read:
            try:
                if read(0, min(len(_NPY), self.text.size)) == _NPY:
                    return by_stream(_Decoding(read, self.text.size))
            except errors.DataError:
                if b"\\" not in read(0, self.text.size):
                    raise
            text = read(0, self.text.size)
            try:
                string = str(json.loads(b'"' + text + b'"'))
                # Old files have the bytes as latin-1 text; no base64 text begins like this.
                is_latin = string.startswith(("\x93NUMPY", "PK\x03\x04"))
                data = string.encode("latin-1") if is_latin else _decoded(string)
            except json.JSONDecodeError as error:
                raise _damaged(error.msg) from error
            except UnicodeDecodeError as error:
                raise _damaged("it is not UTF-8") from error
            except UnicodeEncodeError as error:
                raise errors.DataError("its latin-1 text is damaged") from error
            return by_array(npz.first_array(data) if data[:2] == b"PK" else npz.read_npy(io.BytesIO(data), len(data)))


class _Decoding:
    """A stream of the ``size`` bytes of a base64 text."""

    def __init__(self, read: SteadyFileRead, length: int) -> None:
        self._read = read
        self._length = length
        self._at = 0
        self._ready = b""
        if length % 4:
            raise _damaged(f"{length} characters are not a multiple of 4")
        self.size = length // 4 * 3 - _padding(read, length)

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        missing = size - len(self._ready)
        if missing > 0:
            self._ready += self._decoded(min(-(-missing // 3) * 4, self._length - self._at))
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _decoded(self, length: int) -> bytes:
        data = _decoded(self._read(self._at, length))
        self._at += length
        expected = self.size % 3 - 3 if self._at == self._length and self.size % 3 else 0
        if len(data) != length // 4 * 3 + expected:
            raise _damaged("there is padding within it")
        return data


def _padding(read: SteadyFileRead, length: int) -> int:
    """The number of padding characters (``=``) at the end of a base64 text."""
    end = read(length - 2, 2)
    return len(end) - len(end.rstrip(b"="))


def encoded(array: Array) -> Iterator[bytes]:
    """The base64 text of an array that ``types.storable`` gave, piece by piece."""
    import pybase64

    header, data = npz.encode(array)
    first = -len(header) % 3
    yield pybase64.b64encode(header + data[:first])
    for offset in range(first, len(data), 3 * _PIECE):
        yield pybase64.b64encode(data[offset : offset + 3 * _PIECE])


def _true_form(stored: TensorForm, dtype: str | None) -> TensorForm:
    if dtype is None:
        return stored
    if dtype.startswith(types.TERMINATED):
        return TensorForm(np.dtype(object), stored.shape)
    true = types.dtype_named(dtype)
    if not types.is_extended(true) or stored.dtype.kind not in "iufc":
        raise errors.DataError(f"elements of type {stored.dtype} cannot stand for {true}")
    return TensorForm(true, stored.shape)


def _decoded(text: str | bytes) -> bytes:
    import pybase64

    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _damaged(str(error)) from error


def _damaged(reason: str) -> errors.DataError:
    return errors.DataError(f"its base64 text is damaged: {reason}")


class Copy(NamedTuple):
    """The base64 text of a tensor, piece by piece, and the name of its type if .npy cannot name it."""

    pieces: Iterator[bytes]
    dtype: str | None


class LazyTensors(TensorsByName[Base64Tensor]):
    """Tensors of a file by name, decoded when they are accessed; errors begin with ``place``.

    Arrays are not kept here, but accessing one again returns the same one while it is alive.
    """

    def __init__(self, encoded: Mapping[str, Base64Tensor], place: str) -> None:
        super().__init__(encoded)
        self._place = place
        self._alive: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> Array:
        array = self._alive.get(name)
        if array is None:
            encoded = self.sources[name]
            with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
                array = self._alive[name] = encoded.array()
        return array

    def form(self, name: str) -> TensorForm:
        """Type and shape of a tensor, without decoding it. Raises DataError if its beginning is damaged."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            return self.sources[name].form()

    def copy(self, name: str) -> Copy | None:
        """The text of a tensor, if it can be copied into another file. Raises DataError as ``form``."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            encoded = self.sources[name]
            # It must be what ``parts`` would write for these numbers: base64 of .npy, and no strings.
            encoded.form()
            can_copy = encoded.decoded(lambda npy: npz.form(npy, npy.size).dtype.kind not in "US", lambda _: False)
            return Copy(self._copied(name), encoded.dtype) if can_copy else None

    def _copied(self, name: str) -> Iterator[bytes]:
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            yield from self.sources[name].copied()


_KEY = b'"array"'
_VALUE = re.compile(rb'[ \t\n\r]*:[ \t\n\r]*"([^"\\]*)')
_MOST_SPACE = 64
LONG = 1024
"""Bytes of the shortest text that is left out of the skeleton."""

_SKELETON_PIECE = 1 << 16


@dataclass(frozen=True)
class TextInFile:
    """The inside of a string that stays in its file, from byte ``start`` on."""

    file: SteadyFile
    start: int
    size: int

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """A function that reads it. Raises DataError if the file has changed."""
        with self.file.opened() as read:
            yield lambda offset, size: read(self.start + offset, size)


@dataclass(frozen=True)
class TextInMemory:
    """The inside of a short string."""

    data: bytes

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return len(self.data)

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """A function that reads it."""
        yield lambda offset, size: self.data[offset : offset + size]


Text: TypeAlias = TextInFile | TextInMemory
"""The inside of a string in a JSON file; ``opened`` raises DataError if the file has changed."""


@dataclass(frozen=True)
class Skeleton:
    """A JSON file without its long texts: ``text`` has marks in their place, and ``left_out`` the text of each mark."""

    text: bytes
    left_out: Mapping[str, TextInFile]

    def parsed(self, object_hook: Any) -> Any:
        """The tree, with marks in place of long texts. Raises DataError if it is not JSON."""
        try:
            return json.loads(self.text, object_hook=object_hook)
        except json.JSONDecodeError as error:
            before = error.doc[: error.pos]
            texts = list(self.left_out.items())
            count = before.count(texts[0][0].partition(":")[0]) if texts else 0
            place = len(before.encode("utf-8", "surrogatepass")) + sum(
                text.size - len(mark) for mark, text in texts[:count]
            )
            raise errors.DataError(f"it is not a JSON file, or cut short: {error.msg}, at byte {place}") from error
        except (ValueError, RecursionError) as error:
            raise errors.DataError(f"it is not a JSON file, or cut short: {error}") from error


def skeleton_of(file: SteadyFile) -> Skeleton:
    """The skeleton of a JSON file. Raises DataError if the file ends within a long text, or changes meanwhile."""
    with file.opened() as read:
        if not json.detect_encoding(read(0, min(4, file.size))).startswith("utf-8"):
            return Skeleton(read(0, file.size), {})
        window = _FileWindow(read, file.size)
        nonce = os.urandom(16).hex()
        kept: list[bytes] = []
        left_out: dict[str, TextInFile] = {}
        done = 0
        for start, end in _long_values(window):
            mark = f"{nonce}:{len(left_out)}"
            left_out[mark] = TextInFile(file, start, end - start)
            kept += window.part(done, start), mark.encode("ascii")
            done = end
        return Skeleton(b"".join([*kept, window.part(done, file.size)]), left_out)


def _long_values(window: _FileWindow) -> Iterator[tuple[int, int]]:
    """Start and end of each long value of the key, without its quotes."""
    at = 0
    while (key := window.find(_KEY, at)) >= 0:
        at = key + len(_KEY)
        value = _VALUE.match(window.part(at, at + _MOST_SPACE + LONG))
        if value is None or len(value[1]) < LONG or window.part(max(key - 1, 0), key) == b"\\":
            continue
        at += value.start(1)
        end = window.find(b'"', at)
        if end < 0:
            raise errors.DataError(f"it is not a JSON file, or cut short: the text that begins at byte {at} has no end")
        # With a backslash before it, the quote is not the end, and this is not base64: it stays in the skeleton.
        if window.part(end - 1, end) != b"\\":
            yield at, end
            at = end + 1


class _FileWindow:
    """A file of which one piece at a time is in memory."""

    def __init__(self, read: SteadyFileRead, size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._piece = b""

    def find(self, pattern: bytes, at: int) -> int:
        """The first place of a pattern from ``at`` on; -1 if there is none."""
        while at < self._size:
            if not self._start <= at < self._start + len(self._piece) - len(_KEY):
                self._start = at
                self._piece = self._read(at, min(_SKELETON_PIECE, self._size - at))
            place = self._piece.find(pattern, at - self._start)
            if place >= 0:
                return self._start + place
            end = self._start + len(self._piece)
            if end == self._size:
                break
            at = max(at + 1, end - len(pattern) + 1)
        return -1

    def part(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``, or to the end of the file."""
        end = min(end, self._size)
        if self._start <= start and end <= self._start + len(self._piece):
            return self._piece[start - self._start : end - self._start]
        return self._read(start, max(end - start, 0))
