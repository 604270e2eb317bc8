"""Polygraphy's JSON files of inputs and outputs (read off version 0.53.6; both its forms of typed objects are read).

Inputs are a list of iterations, ``[{name: ndarray}, ...]``, or one bare object; outputs are a ``RunResults`` object::

    {"lst": [[runner, [{"outputs": {name: {"values": ndarray, "polygraphy_class": "LazyArray"}},
                        "runtime": seconds, "runner_name": runner, "polygraphy_class": "IterationResult"}, ...]], ...],
     "polygraphy_class": "RunResults"}

An ndarray is ``{"array": base64 of a whole .npy file, "polygraphy_class": "ndarray"}``. Types that .npy cannot name
(bfloat16, float8, int4, ...) are widened without loss to float32, int8 or uint8, which is what Polygraphy then reads;
one more key, ``"biopsy_dtype"``, which it ignores, lets biopsy read back the type itself.
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


# Writing


def parts(container: Container, *, bare: bool = False) -> Iterator[bytes]:
    """The bytes of a JSON file, piece by piece. ``bare`` writes one feed without the list around it.

    A tensor of another JSON file is copied as it stands there, unless it would be written in another way. Raises
    DataError naming iteration and tensor if one cannot be saved, or be read.
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
            described = {"outputs": outputs, "runtime": iteration.runtime, "runner_name": runner.runner}
            trees.append({**described, CLASS: "IterationResult"})
        runners.append([runner.runner, trees])
    if container.kind == "results":
        yield from writing.pieces({"lst": runners, CLASS: "RunResults"})
    else:
        yield from writing.pieces(feeds[0] if bare else feeds)


class _Writing:
    """A tree with marks for its tensors, which follow when it is written: one of them is in memory at a time."""

    def __init__(self) -> None:
        self._nonce = os.urandom(16).hex()
        self._marked: list[tuple[int, Feed, str]] = []

    def marks(self, number: int, tensors: Feed) -> dict[str, str]:
        """A mark for each tensor of an iteration, by name."""
        first = len(self._marked)
        self._marked += [(number, tensors, name) for name in tensors]
        return {name: f"{self._nonce}:{position}" for position, name in enumerate(tensors, first)}

    def pieces(self, tree: Any) -> Iterator[bytes]:
        """The text of a tree with tensors for marks."""
        pieces = re.split(f'"{self._nonce}:([0-9]+)"', json.dumps(tree, indent=_INDENT))
        yield pieces[0].encode("ascii")
        for before, mark, after in zip(pieces[::2], pieces[1::2], pieces[2::2], strict=False):
            line = before[before.rfind("\n") + 1 :]
            number, tensors, name = self._marked[int(mark)]
            with placed(f"iteration {number}"):
                yield from self._tensor(tensors, name, "\n" + line[: len(line) - len(line.lstrip())])
            yield after.encode("ascii")

    def _tensor(self, tensors: Feed, name: str, new_line: str) -> Iterator[bytes]:
        """The object of one tensor, its lines begun with ``new_line``."""
        text = _text_of(tensors, name)
        tree = {"array": self._nonce, CLASS: "ndarray"} | ({} if text.dtype is None else {DTYPE: text.dtype})
        before, after = json.dumps(tree, indent=_INDENT).replace("\n", new_line).split(self._nonce)
        yield before.encode("ascii")
        yield from text.pieces
        yield after.encode("ascii")


def _text_of(tensors: Feed, name: str) -> Copy:
    """The text that a tensor has in another file, or else its values encoded."""
    while isinstance(tensors, ChosenTensors):
        tensors = tensors.sources[name]
    if isinstance(tensors, LazyTensors) and (copy := tensors.copy(name)) is not None:
        return copy
    array = types.storable(name, tensors[name])
    stored, dtype = types.stored_form(array)
    named = types.is_extended(array.dtype) or stored is not array
    return Copy(encoded(types.widened(stored)), dtype if named else None)


# Reading


@dataclass(frozen=True)
class _Damaged:
    """A value that could not be decoded. Told only where it is met, when the names around it are known."""

    error: errors.DataError


@dataclass(frozen=True)
class _TypedObject:
    """An object whose class is told."""

    kind: str
    tree: Mapping[str, Any]


def read(path: Path) -> Container:
    """The contents of a JSON file of inputs or outputs; arrays are read-only, and decoded when they are asked for.

    Raises DataError naming iteration and tensor if the file is damaged, is no file of Polygraphy's, or holds torch
    tensors. Who asks for a tensor that is damaged, or has been changed meanwhile, gets one too.
    """
    try:
        skeleton = skeleton_of(SteadyFile(path))
    except OSError as error:
        raise errors.DataError(f"it cannot be read: {error.strerror}") from error
    tree = skeleton.parsed(partial(_meaning_of, skeleton.left_out))
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
                    raise errors.DataError(f"{place}: it is no IterationResult")
                tensors = _tensors(path, place, iteration.tree.get("outputs") or {})
                iterations.append(Iteration(tensors, seconds_of(iteration.tree.get("runtime"))))
            runners.append(RunnerResult(str(entry[0]), tuple(iterations)))
        return Container("results", tuple(runners))
    feeds = tree if isinstance(tree, list) else [tree]
    iterations = [Iteration(_tensors(path, f"iteration {number}", feed)) for number, feed in enumerate(feeds)]
    return Container("feeds", (RunnerResult(path.stem, tuple(iterations)),))


def _meaning_of(left_out: Mapping[str, Text], tree: dict[str, Any]) -> Any:
    """What an object of the JSON text stands for; called for the innermost ones first, so that text is soon freed."""
    old = (key for key, value in tree.items() if value == OLD_MARK and key.startswith(OLD_CLASS))
    kind = next((key.removeprefix(OLD_CLASS) for key in old), tree.get(CLASS))
    text = tree.get("array")
    if kind == "ndarray":
        if not isinstance(text, str):
            return _Damaged(errors.DataError("its array is no text"))
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
    """A text that is no tensor's, as it stands in the file."""
    with text.opened() as read:
        whole = read(0, text.size)
    try:
        return str(json.loads(b'"' + whole + b'"'))
    except ValueError as error:
        raise errors.DataError(f"it is no JSON file: a text of {text.size} bytes is damaged: {error}") from error


def _tensors(path: Path, place: str, tree: Any) -> LazyTensors:
    with placed(place):
        if isinstance(tree, _Damaged):
            raise tree.error
        if not isinstance(tree, dict):
            raise errors.DataError("it is no object of named tensors")
        for name, value in tree.items():
            with placed(f"tensor {name!r}"):
                if isinstance(value, _Damaged):
                    raise value.error
                if not isinstance(value, Base64Tensor):
                    raise errors.DataError("it is no array")
    return LazyTensors(tree, f"cannot read {path}: {place}")


# Tensors as long base64 texts: the rest is parsed as usual, and each tensor is decoded when it is asked for.

_T = TypeVar("_T")

_NPY = base64.b64encode(npz.MAGIC)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PIECE = 1 << 18


@dataclass(frozen=True)
class Base64Tensor:
    """``text`` stands for a .npy or .npz file; ``dtype`` names the true type of its elements, if .npy does not."""

    text: Text
    dtype: str | None = None

    def array(self) -> Array:
        """The tensor, read-only. Raises DataError if the text is damaged, or its file has changed."""
        array: Array = self.decoded(lambda npy: npz.read_npy(npy, npy.size), lambda whole: whole)
        if self.dtype is None:
            return array
        if self.dtype.startswith(types.TERMINATED):
            return types.true_form(array, self.dtype)
        true = array.astype(_true_form(form_of_array(array), self.dtype).dtype)
        true.flags.writeable = False
        return true

    def form(self) -> TensorForm:
        """Type and shape, read off the first characters wherever that is possible. Raises DataError as ``array``."""
        stored = self.decoded(lambda stream: npz.form(stream, stream.size), form_of_array)
        return _true_form(stored, self.dtype)

    def copied(self) -> Iterator[bytes]:
        """The text as it stands, piece by piece. Raises DataError if a character in it is not of base64."""
        size = self.text.size
        with self.text.opened() as read:
            digits = size - _padding(read, size)
            for offset in range(0, size, _PIECE):
                piece = read(offset, min(_PIECE, size - offset))
                if piece[: max(digits - offset, 0)].translate(None, _ALPHABET):
                    raise _damaged("it holds other characters")
                yield piece

    def decoded(self, by_stream: Callable[[_Decoding], _T], by_array: Callable[[Array], _T]) -> _T:
        """What the text is found to hold: read piece by piece, or at once if it is of a form that is no longer written.

        That is latin-1 or a .npz file; and some programs write a backslash before each slash.
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
                whole = str(json.loads(b'"' + text + b'"'))
                # Old files hold the bytes themselves as latin-1 text; no base64 of such data begins in this way.
                is_latin = whole.startswith(("\x93NUMPY", "PK\x03\x04"))
                data = whole.encode("latin-1") if is_latin else _decoded(whole)
            except json.JSONDecodeError as error:
                raise _damaged(error.msg) from error
            except UnicodeDecodeError as error:
                raise _damaged("it is no UTF-8") from error
            except UnicodeEncodeError as error:
                raise errors.DataError("its latin-1 text is damaged") from error
            return by_array(npz.first_array(data) if data[:2] == b"PK" else npz.read_npy(io.BytesIO(data), len(data)))


class _Decoding:
    """The bytes that a base64 text stands for, from the first to the last; ``size`` of them."""

    def __init__(self, read: SteadyFileRead, length: int) -> None:
        self._read = read
        self._length = length
        self._at = 0
        self._ready = b""
        if length % 4:
            raise _damaged(f"{length} characters are no multiple of 4")
        self.size = length // 4 * 3 - _padding(read, length)

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        missing = size - len(self._ready)
        if missing > 0:
            self._ready += self._decoded(min(-(-missing // 3) * 4, self._length - self._at))
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def _decoded(self, length: int) -> bytes:
        data = _decoded(self._read(self._at, length))
        self._at += length
        expected = self.size % 3 - 3 if self._at == self._length and self.size % 3 else 0
        if len(data) != length // 4 * 3 + expected:
            raise _damaged("there is padding within it")
        return data


def _padding(read: SteadyFileRead, length: int) -> int:
    """How many of the last two characters are no digits."""
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


def _damaged(why: str) -> errors.DataError:
    return errors.DataError(f"its base64 text is damaged: {why}")


# Tensors of a file by name, each decoded when it is asked for.
#
# What has been decoded is not kept here: whoever holds an array has it, and is given the same one while it lives.


class Copy(NamedTuple):
    """The base64 text of a tensor, piece by piece, and the name of its type if .npy has none."""

    pieces: Iterator[bytes]
    dtype: str | None


class LazyTensors(TensorsByName[Base64Tensor]):
    """Tensors that are base64 text. Who asks for one that is damaged gets a DataError that begins with ``place``."""

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
        """Type and shape of a tensor, which is not decoded for that. Raises DataError if its beginning is damaged."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            return self.sources[name].form()

    def copy(self, name: str) -> Copy | None:
        """The text of a tensor, if that may go into another file as it stands. Raises DataError as ``form`` does."""
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            encoded = self.sources[name]
            # Only if it is what a file of ours would have for these numbers: of the right length, and no text.
            encoded.form()
            is_ours = encoded.decoded(lambda npy: npz.form(npy, npy.size).dtype.kind not in "US", lambda _: False)
            return Copy(self._copied(name), encoded.dtype) if is_ours else None

    def _copied(self, name: str) -> Iterator[bytes]:
        with placed(f"{self._place}: tensor {name!r}", UnreadableFileError):
            yield from self.sources[name].copied()


# JSON without its long texts: what remains of a file of tensors is small, and is parsed as usual.
#
# Inside a JSON string every quote has a backslash before it. So ``"array"`` without one before it is a whole string,
# or the file is no JSON; with a colon and a quote behind, it is a key and its value is a string, which ends at the
# next quote. Long values of that key are left out of the skeleton, each with a mark in its place that nobody can
# guess. Nothing is decoded, and nothing but the skeleton is kept. Whatever is no JSON at any place stays that, since
# everything in front of that place is parsed as it stands, except for the insides of strings.

_KEY = b'"array"'
_VALUE = re.compile(rb'[ \t\n\r]*:[ \t\n\r]*"([^"\\]*)')
_MOST_SPACE = 64
LONG = 1024
"""Bytes of the shortest text that is left out."""

_SKELETON_PIECE = 1 << 16


@dataclass(frozen=True)
class TextInFile:
    """A string that is left in its file, from byte ``start`` on."""

    file: SteadyFile
    start: int
    size: int

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """What reads it. Raises DataError if the file has changed."""
        with self.file.opened() as read:
            yield lambda offset, size: read(self.start + offset, size)


@dataclass(frozen=True)
class TextInMemory:
    """A short string."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """What reads it."""
        yield lambda offset, size: self.data[offset : offset + size]


Text: TypeAlias = TextInFile | TextInMemory
"""A string of a JSON file as it stands there, between its quotes; ``opened`` raises DataError if that has changed."""


@dataclass(frozen=True)
class Skeleton:
    """A JSON file without its long texts: ``text`` has marks in their place, and ``left_out`` says which is which."""

    text: bytes
    left_out: Mapping[str, TextInFile]

    def parsed(self, object_hook: Any) -> Any:
        """The tree, with marks for texts. Raises DataError if it is no JSON."""
        try:
            return json.loads(self.text, object_hook=object_hook)
        except json.JSONDecodeError as error:
            before = error.doc[: error.pos]
            texts = list(self.left_out.items())
            count = before.count(texts[0][0].partition(":")[0]) if texts else 0
            place = len(before.encode("utf-8", "surrogatepass")) + sum(
                text.size - len(mark) for mark, text in texts[:count]
            )
            raise errors.DataError(f"it is no JSON file, or cut short: {error.msg}, at byte {place}") from error
        except (ValueError, RecursionError) as error:
            raise errors.DataError(f"it is no JSON file, or cut short: {error}") from error


def skeleton_of(file: SteadyFile) -> Skeleton:
    """What a JSON file holds without its long texts. Raises DataError if it ends within one, or changes meanwhile."""
    with file.opened() as read:
        if not json.detect_encoding(read(0, min(4, file.size))).startswith("utf-8"):
            return Skeleton(read(0, file.size), {})
        sight = _Sight(read, file.size)
        nonce = os.urandom(16).hex()
        kept: list[bytes] = []
        left_out: dict[str, TextInFile] = {}
        done = 0
        for start, end in _texts(sight):
            mark = f"{nonce}:{len(left_out)}"
            left_out[mark] = TextInFile(file, start, end - start)
            kept += sight.part(done, start), mark.encode("ascii")
            done = end
        return Skeleton(b"".join([*kept, sight.part(done, file.size)]), left_out)


def _texts(sight: _Sight) -> Iterator[tuple[int, int]]:
    """Where the long values of the key begin and end, without their quotes."""
    at = 0
    while (key := sight.find(_KEY, at)) >= 0:
        at = key + len(_KEY)
        value = _VALUE.match(sight.part(at, at + _MOST_SPACE + LONG))
        if value is None or len(value[1]) < LONG or sight.part(max(key - 1, 0), key) == b"\\":
            continue
        at += value.start(1)
        end = sight.find(b'"', at)
        if end < 0:
            raise errors.DataError(f"it is no JSON file, or cut short: the text that begins at byte {at} has no end")
        # With a backslash before the quote, it is not the end, nor is this base64: it is parsed as it stands.
        if sight.part(end - 1, end) != b"\\":
            yield at, end
            at = end + 1


class _Sight:
    """A file seen through one piece at a time."""

    def __init__(self, read: SteadyFileRead, size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._piece = b""

    def find(self, what: bytes, at: int) -> int:
        """Where it stands next, from ``at`` on; -1 if it does not."""
        while at < self._size:
            if not self._start <= at < self._start + len(self._piece) - len(_KEY):
                self._start = at
                self._piece = self._read(at, min(_SKELETON_PIECE, self._size - at))
            place = self._piece.find(what, at - self._start)
            if place >= 0:
                return self._start + place
            end = self._start + len(self._piece)
            if end == self._size:
                break
            at = max(at + 1, end - len(what) + 1)
        return -1

    def part(self, start: int, end: int) -> bytes:
        """The bytes there, as far as the file goes."""
        end = min(end, self._size)
        if self._start <= start and end <= self._start + len(self._piece):
            return self._piece[start - self._start : end - self._start]
        return self._read(start, max(end - start, 0))
