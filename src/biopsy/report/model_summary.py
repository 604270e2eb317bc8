"""A model in a few facts: what it takes and gives, its versions, how much is in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biopsy import errors
from biopsy.model.digest import digest_of
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.node import string_in
from biopsy.model.tensor_type import TensorType, ValueType
from biopsy.model.wire import BYTES, VARINT, fields, signed, varint_at
from biopsy.report.tree import Tree

_MOST_VALUES = 200
"""Of inputs, and of outputs."""


def model_tree(index: ModelIndex, path: Path) -> Tree:
    """The facts of the model in a file."""
    return {
        "path": str(path),
        "sha256": digest_of(path),
        "nodes": len(index.nodes),
        "ir_version": index.ir_version,
        "opsets": opsets(index),
        "inputs": values(index, index.fed_inputs()),
        "outputs": values(index, index.outputs),
        "weight_bytes": index.weight_bytes,
        "producer": producer(index) or None,
    }


def model_tree_of(path: Path) -> Tree:
    """The facts of a model that is not indexed yet; of what is no model only the file's."""
    try:
        return model_tree(index_file(path), path)
    except errors.BiopsyError:
        return {"path": str(path), "sha256": digest_of(path) if path.is_file() else None}


def opsets(index: ModelIndex) -> dict[str, int]:
    """Version by domain; the standard's domain is ""."""
    found = {}
    for number, kind, _, start, end in fields(index.model_tail):
        if number == 8 and kind == BYTES:
            payload = index.model_tail[start:end]
            domain = string_in(payload, 1, 0, len(payload))
            versions = [varint_at(payload, at) for n, k, _, at, _ in fields(payload) if (n, k) == (2, VARINT)]
            found["" if domain == "ai.onnx" else domain] = signed(versions[-1]) if versions else 0
    return found


def producer(index: ModelIndex) -> str:
    """Who made the model, with the version: ``pytorch 2.13.0``; "" if it does not say."""
    head = index.model_head
    return " ".join(filter(None, (string_in(head, number, 0, len(head)) for number in (2, 3))))


def values(index: ModelIndex, tensors: Iterable[int]) -> list[Tree]:
    """Inputs or outputs with their types, as far as the model declares them."""
    return [value_tree(index.names[tensor], index.value_type(tensor)) for tensor in list(tensors)[:_MOST_VALUES]]


def value_tree(name: str, kind: ValueType | None) -> Tree:
    """One value: ``shape`` is None where even the rank is unknown, and for what is no tensor."""
    if isinstance(kind, TensorType):
        return {"name": name, "dtype": kind.dtype, "shape": None if kind.shape is None else list(kind.shape)}
    return {"name": name, "dtype": None if kind is None else str(kind), "shape": None}
