"""Weights of a model as arrays over the file that they stand in: they are never copied, however large they are.

Read into the model, they would be in memory three times, and protobuf writes no model of 2 GB.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from biopsy import errors
from biopsy.filesystem.plain_file import open_plain
from biopsy.model.external import Span, is_external, span_of
from biopsy.model.storage import BITS
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx

_ELEMS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16})
"""Element types of whole bytes whose raw form is that of NumPy, or of ml_dtypes for bfloat16."""


def taken_out(model: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    """Take the weights out of the main graph of a model that stand in files, and give them by their names.

    They are private to this process: who writes to them does not change the file. Weights of subgraphs, and those of
    types that are packed or that NumPy lacks, are left in the model as they were.

    Raises ModelError if a file is missing, unsafe or too short; the model is then unchanged.
    """
    if sys.byteorder != "little":
        return {}
    found: dict[str, Array] = {}
    files: dict[Path, mmap.mmap] = {}
    for tensor in model.graph.initializer:
        dtype = _dtype(tensor.data_type) if is_external(tensor) and tensor.name else None
        if dtype is None or 0 in tensor.dims:
            continue
        span = span_of(tensor, folder)
        if span.path not in files:
            files[span.path] = _mapped(tensor.name, span)
        count = span.length // dtype.itemsize
        found[tensor.name] = np.frombuffer(files[span.path], dtype, count, span.offset).reshape(tuple(tensor.dims))
    for number, tensor in reversed(list(enumerate(model.graph.initializer))):
        if tensor.name in found:
            del model.graph.initializer[number]
    return found


def _dtype(elem: int) -> np.dtype[np.generic] | None:
    """The type of the arrays that the evaluator of onnx computes with; None where their bytes are others."""
    from onnx import helper

    if elem not in _ELEMS:
        return None
    dtype: np.dtype[np.generic] = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    return dtype if 8 * dtype.itemsize == BITS[elem] else None


def _mapped(tensor: str, span: Span) -> mmap.mmap:
    try:
        with open_plain(span.path) as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise errors.ModelError(f"the weights of tensor {tensor!r} cannot be read from {span.path}: {error}") from error
    if span.offset + span.length > len(mapped):
        raise errors.ModelError(f"{span.path} became shorter while tensor {tensor!r} was read")
    return mapped
