"""Values of tensors that stand in a model: read, and replaced by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy.model.external import is_external
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx


def values_of(tensor: onnx.TensorProto) -> Array | None:
    """The values of a tensor; None where they stand in another file, or where numpy has no such type."""
    from onnx import numpy_helper

    if is_external(tensor):
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # a type that numpy does not know, or values that do not fit the shape
        return None


def with_values(tensor: onnx.TensorProto, values: Array) -> bool:
    """Give a tensor other values, and their type and shape; False if they cannot be held by one."""
    from onnx import numpy_helper

    try:
        made = numpy_helper.from_array(values.copy(order="C"), tensor.name)
    except Exception:  # a type that onnx has no number for
        return False
    tensor.CopyFrom(made)
    return True
