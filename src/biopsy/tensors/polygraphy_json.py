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
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.plain_file import read_whole
from biopsy.tensors import archive, dtypes, npy, npz
from biopsy.tensors.container import Container, placed
from biopsy.tensors.results import Array, Iteration, RunnerResult

CLASS = "polygraphy_class"
OLD_CLASS = "__polygraphy_encoded_"
OLD_MARK = "polygraphy_serialized_json_type"
DTYPE = "biopsy_dtype"


# Writing


def parts(container: Container, *, bare: bool = False) -> Iterator[bytes]:
    """The bytes of a JSON file, about one tensor at a time. ``bare`` writes one feed without the list around it."""
    tree: Any
    if container.kind == "results":
        tree = {"lst": [_runner_tree(runner) for runner in container.runners], CLASS: "RunResults"}
    else:
        feeds = [iteration.outputs for runner in container.runners for iteration in runner.iterations]
        tree = feeds[0] if bare else feeds
    for piece in json.JSONEncoder(indent=4, default=_array_tree).iterencode(tree):
        yield piece.encode("ascii")


def _runner_tree(runner: RunnerResult) -> list[Any]:
    return [runner.runner, [_iteration_tree(runner.runner, iteration) for iteration in runner.iterations]]


def _iteration_tree(runner: str, iteration: Iteration) -> dict[str, Any]:
    outputs = {name: {"values": array, CLASS: "LazyArray"} for name, array in iteration.outputs.items()}
    return {"outputs": outputs, "runtime": iteration.runtime, "runner_name": runner, CLASS: "IterationResult"}


def _array_tree(array: Array) -> dict[str, Any]:
    stored, name = dtypes.stored_form(array)
    header, data = npy.encode(dtypes.widened(stored))
    tree = {"array": base64.b64encode(header + bytes(data)).decode("ascii"), CLASS: "ndarray"}
    if dtypes.is_extended(array.dtype) or stored is not array:
        tree[DTYPE] = name
    return tree


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
    """The contents of a JSON file of inputs or outputs; arrays are read-only.

    Raises DataError naming iteration and tensor if the file is damaged, is no file of Polygraphy's, or holds torch
    tensors.
    """
    try:
        tree = json.loads(read_whole(path), object_hook=_decoded)
    except (ValueError, RecursionError) as error:
        raise errors.DataError(f"it is no JSON file, or cut short: {error}") from error
    except OSError as error:
        raise errors.DataError(f"it cannot be read: {error.strerror}") from error
    if isinstance(tree, _Damaged):
        raise tree.error
    if isinstance(tree, _Results):
        return Container("results", tuple(_runners(tree.lst)))
    feeds = tree if isinstance(tree, list) else [tree]
    iterations = []
    for number, feed in enumerate(feeds):
        with placed(f"iteration {number}"):
            iterations.append(Iteration(_tensors(feed)))
    return Container("feeds", (RunnerResult(path.stem, tuple(iterations)),))


def _decoded(tree: dict[str, Any]) -> Any:
    """What an object of the JSON text stands for; called for the innermost ones first, so that text is soon freed."""
    kind = _class_of(tree)
    if kind is None:
        return tree
    if kind == "ndarray":
        try:
            return _array(tree)
        except errors.DataError as error:
            return _Damaged(error)
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


def _array(tree: dict[str, Any]) -> Array:
    text = tree.get("array")
    if not isinstance(text, str):
        raise errors.DataError("its array is no text")
    data = _bytes(text)
    array = npz.first_array(data) if data[:2] == b"PK" else npy.decode(data)
    if DTYPE not in tree:
        return array
    if str(tree[DTYPE]).startswith(dtypes.TERMINATED):
        return dtypes.true_form(array, str(tree[DTYPE]))
    dtype = dtypes.dtype_named(str(tree[DTYPE]))
    if not dtypes.is_extended(dtype) or array.dtype.kind not in "iufc":
        raise errors.DataError(f"elements of type {array.dtype} cannot stand for {dtype}")
    return array.astype(dtype)


def _bytes(text: str) -> bytes:
    # Old files hold the bytes themselves as latin-1 text; neither beginning can be that of base64 of such data.
    if text.startswith(("\x93NUMPY", "PK\x03\x04")):
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError as error:
            raise errors.DataError("its latin-1 text is damaged") from error
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.DataError(f"its base64 text is damaged: {error}") from error


def _runners(lst: Any) -> Iterator[RunnerResult]:
    for entry in lst if isinstance(lst, list) else [None]:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
            raise errors.DataError("its list of runners is damaged")
        iterations = []
        for number, iteration in enumerate(entry[1]):
            with placed(f"runner {entry[0]!r}, iteration {number}"):
                if not isinstance(iteration, _Iteration):
                    raise errors.DataError("it is no IterationResult")
                iterations.append(Iteration(_tensors(iteration.outputs or {}), archive.seconds_of(iteration.runtime)))
        yield RunnerResult(str(entry[0]), tuple(iterations))


def _tensors(tree: Any) -> dict[str, Array]:
    if isinstance(tree, _Damaged):
        raise tree.error
    if not isinstance(tree, dict):
        raise errors.DataError("it is no object of named tensors")
    for name, value in tree.items():
        with placed(f"tensor {name!r}"):
            if isinstance(value, _Damaged):
                raise value.error
            if not hasattr(value, "dtype"):
                raise errors.DataError("it is no array")
    return tree
