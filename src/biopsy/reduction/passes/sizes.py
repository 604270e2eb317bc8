"""Smaller dimensions: batch, length, channels, whatever number stands in the shapes of inputs and weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import FLOATS
from biopsy.reduction.passes.contract import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied, is_consistent, tell_types_anew
from biopsy.reduction.passes.weights import ones, set_values

if TYPE_CHECKING:
    import onnx

_SHAPE_INPUTS = frozenset(
    {("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Slice", 2), ("Resize", 3), ("Split", 1), ("Range", 1)}
)
"""Inputs of operators whose values are sizes."""

_LISTS = frozenset({6, 7})
"""int32 and int64: the types of lists of sizes."""

_MOST = 1 << 31
"""More than this is no size: Slice writes "to the end" with the largest number there is."""

SIZE_ATTRIBUTES = frozenset({"shape", "split", "value_ints", "output_shape", "sizes", "group", "hidden_size"})
"""Attributes whose values are sizes."""


@dataclass(frozen=True)
class Resizing:
    """One number that stands for a size, wherever it stands, becomes another; its multiples too, if asked."""

    before: int
    after: int
    multiples: bool = False

    def __call__(self, size: int) -> int:
        """What becomes of a size."""
        if size == self.before or (self.multiples and size > 0 and size % self.before == 0):
            return size // self.before * self.after
        return size

    def __str__(self) -> str:
        return f"size {self.after} in place of {self.before}{' and of its multiples' if self.multiples else ''}"


def sizes(model: onnx.ModelProto) -> ChangeSearch:
    """Try 1, 2 and half in place of each size, largest first; then also in place of its multiples.

    What shape inference refutes is not proposed; the check decides about the rest.
    """
    strict = is_consistent(model)
    for size in sorted(_sizes_in(model), reverse=True):
        if size not in _sizes_in(model):
            continue
        changes: list[Change] = []
        for multiples, after in product((False, True), dict.fromkeys((1, 2, size // 2))):
            resizing = Resizing(size, after, multiples)
            made = with_sizes(model, resizing) if after < size else None
            if made is None or any(made == change.model for change in changes):
                continue
            if not strict or is_consistent(made):
                changes.append(Change(made, str(resizing)))
        answer = (yield changes) if changes else None
        model = answer or model


def _sizes_in(model: onnx.ModelProto) -> set[int]:
    from onnx import numpy_helper

    found = {size for weight in model.graph.initializer if has_sizes(weight) for size in weight.dims}
    for info in model.graph.input:
        found.update(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    lists = lists_of_sizes(model)
    for name, tensor in named_tensors(model):
        if name in lists and tensor.data_type in _LISTS and not is_external(tensor):
            found.update(numpy_helper.to_array(tensor).ravel().tolist())
    return {size for size in found if 1 < size < _MOST}


def has_sizes(weight: onnx.TensorProto) -> bool:
    """Whether the shape of a weight speaks of sizes; that of a list of axes or sizes says how many there are."""
    return weight.data_type != 7 or len(weight.dims) > 1


def with_sizes(model: onnx.ModelProto, resizing: Resizing) -> onnx.ModelProto | None:
    """The model with one size changed in types, weights, lists of sizes and attributes; None if a weight is in the way.

    Weights are cut off at the end of a dimension. Floating-point weights in other files are replaced by ones.
    """
    made = copied(model)
    lists = lists_of_sizes(made)
    for graph in walk.graphs(made):
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_value"):
                    dim.dim_value = resizing(dim.dim_value)
        for node in graph.node:
            _resize_attributes(node, resizing)
    for name, tensor in named_tensors(made):
        done = _resize_values(tensor, resizing) if name in lists else _cut_off(tensor, resizing)
        if not done:
            return None
    tell_types_anew(made)
    return made


def lists_of_sizes(model: onnx.ModelProto) -> set[str]:
    """Names of tensors whose values are sizes."""
    return {
        name
        for graph in walk.graphs(model)
        for node in graph.node
        for position, name in enumerate(node.input)
        if (node.op_type, position) in _SHAPE_INPUTS
    }


def named_tensors(model: onnx.ModelProto) -> Iterable[tuple[str, onnx.TensorProto]]:
    """Initializers and the values of Constant nodes."""
    for graph in walk.graphs(model):
        for weight in graph.initializer:
            yield weight.name, weight
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.HasField("t"):
                    yield node.output[0] if node.output else "", attribute.t


def _resize_attributes(node: onnx.NodeProto, resizing: Resizing) -> None:
    for attribute in node.attribute:
        if attribute.name in SIZE_ATTRIBUTES:
            if attribute.HasField("i") and attribute.i > 1:
                attribute.i = resizing(attribute.i)
            for position, value in enumerate(attribute.ints):
                attribute.ints[position] = resizing(value)


def _resize_values(tensor: onnx.TensorProto, resizing: Resizing) -> bool:
    import numpy as np
    from onnx import numpy_helper

    if is_external(tensor) or tensor.data_type not in _LISTS:
        return False
    before = numpy_helper.to_array(tensor)
    after = np.array([resizing(int(value)) for value in before.ravel()], before.dtype).reshape(before.shape)
    if not np.array_equal(before, after):
        tensor.CopyFrom(numpy_helper.from_array(after, tensor.name))
    return True


def _cut_off(tensor: onnx.TensorProto, resizing: Resizing) -> bool:
    """Make a weight smaller; False if its values cannot be had."""
    from onnx import numpy_helper

    dims = [resizing(size) for size in tensor.dims] if has_sizes(tensor) else list(tensor.dims)
    if dims == list(tensor.dims):
        return True
    if is_external(tensor):
        if tensor.data_type not in FLOATS:
            return False
        set_values(tensor, dims, ones(type(tensor)(data_type=tensor.data_type, dims=dims)))
        return True
    try:
        values: Any = numpy_helper.to_array(tensor)[tuple(slice(size) for size in dims)]
        made = numpy_helper.from_array(values.copy(), tensor.name)
    except Exception:  # a type that numpy does not know, or values that do not fit the shape
        return False
    if made.data_type != tensor.data_type:
        return False
    tensor.CopyFrom(made)
    return True
