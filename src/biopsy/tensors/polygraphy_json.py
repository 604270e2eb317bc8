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

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.tensors import types
from biopsy.tensors.container import Container, SteadyFile, placed, seconds_of
from biopsy.tensors.json_tensors import (
    Base64Tensor,
    Copy,
    LazyTensors,
    Text,
    TextInMemory,
    copy_of,
    encoded,
    skeleton_of,
)
from biopsy.tensors.results import Feed, Iteration, RunnerResult

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
    found = copy_of(tensors, name)
    if found is not None:
        return found
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
class _Iteration:
    outputs: Any
    runtime: Any


@dataclass(frozen=True)
class _Results:
    lst: Any


def read(path: Path) -> Container:
    """The contents of a JSON file of inputs or outputs; arrays are read-only, and decoded when they are asked for.

    Raises DataError naming iteration and tensor if the file is damaged, is no file of Polygraphy's, or holds torch
    tensors. Who asks for a tensor that is damaged, or has been changed meanwhile, gets one too.
    """
    try:
        skeleton = skeleton_of(SteadyFile(path))
    except OSError as error:
        raise errors.DataError(f"it cannot be read: {error.strerror}") from error
    tree = skeleton.parsed(partial(_decoded, skeleton.left_out))
    if isinstance(tree, _Damaged):
        raise tree.error
    if isinstance(tree, _Results):
        runners = []
        for entry in tree.lst if isinstance(tree.lst, list) else [None]:
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
                raise errors.DataError("its list of runners is damaged")
            iterations = []
            for number, iteration in enumerate(entry[1]):
                place = f"runner {entry[0]!r}, iteration {number}"
                if not isinstance(iteration, _Iteration):
                    raise errors.DataError(f"{place}: it is no IterationResult")
                tensors = _tensors(path, place, iteration.outputs or {})
                iterations.append(Iteration(tensors, seconds_of(iteration.runtime)))
            runners.append(RunnerResult(str(entry[0]), tuple(iterations)))
        return Container("results", tuple(runners))
    feeds = tree if isinstance(tree, list) else [tree]
    iterations = [Iteration(_tensors(path, f"iteration {number}", feed)) for number, feed in enumerate(feeds)]
    return Container("feeds", (RunnerResult(path.stem, tuple(iterations)),))


def _decoded(left_out: Mapping[str, Text], tree: dict[str, Any]) -> Any:
    """What an object of the JSON text stands for; called for the innermost ones first, so that text is soon freed."""
    kind = _class_of(tree)
    if kind == "ndarray":
        return _tensor(left_out, tree)
    if left_out and isinstance(tree.get("array"), str):
        tree["array"] = _whole_text(left_out, tree["array"])
    if kind is None:
        return tree
    if kind in {"LazyArray", "LazyNumpyArray"}:
        return tree.get("values")
    if kind == "IterationResult":
        return _Iteration(tree.get("outputs"), tree.get("runtime"))
    if kind == "RunResults":
        return _Results(tree.get("lst"))
    if kind == "Tensor":
        problem = "a torch.Tensor is stored as a pickle, which could run code: it is not read"
        return _Damaged(errors.DataError(problem, next_steps=["save numpy arrays instead: tensor.cpu().numpy()"]))
    return _Damaged(errors.DataError(f"it holds an object of type {kind}, which is neither inputs nor outputs"))


def _class_of(tree: dict[str, Any]) -> str | None:
    for key, value in tree.items():
        if isinstance(value, str) and value == OLD_MARK and key.startswith(OLD_CLASS):
            return key.removeprefix(OLD_CLASS)
    kind = tree.get(CLASS)
    return kind if isinstance(kind, str) else None


def _tensor(left_out: Mapping[str, Text], tree: dict[str, Any]) -> Base64Tensor | _Damaged:
    text = tree.get("array")
    if not isinstance(text, str):
        return _Damaged(errors.DataError("its array is no text"))
    dtype = str(tree[DTYPE]) if DTYPE in tree else None
    return Base64Tensor(left_out.get(text) or TextInMemory(json.dumps(text)[1:-1].encode("ascii")), dtype)


def _whole_text(left_out: Mapping[str, Text], text: str) -> str:
    """A text that is no tensor's, as it stands in the file."""
    found = left_out.get(text)
    if found is None:
        return text
    with found.opened() as read:
        whole = read(0, found.size)
    try:
        return str(json.loads(b'"' + whole + b'"'))
    except ValueError as error:
        raise errors.DataError(f"it is no JSON file: a text of {found.size} bytes is damaged: {error}") from error


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
