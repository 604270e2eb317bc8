"""Whether the shapes of a model agree, and the types that follow from what was changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from biopsy.model.infer import without_weights
from biopsy.reduction.passes.editing import keep_only, types_in
from biopsy.reduction.passes.schemas import opsets_of, schema_of

if TYPE_CHECKING:
    import onnx


def is_consistent(model: onnx.ModelProto) -> bool:
    """Whether shapes agree as far as shape inference can tell, and every Reshape keeps the number of elements."""
    import onnx

    try:
        told = onnx.shape_inference.infer_shapes(
            without_weights(model), check_type=True, strict_mode=True, data_prop=True
        )
    except Exception:  # onnx raises whatever a schema's function raises
        return False
    kinds = types_in(told.graph)
    return all(
        _same_count(kinds.get(node.input[0]), kinds.get(node.output[0]))
        for node in told.graph.node
        if node.op_type == "Reshape" and node.input and node.output
    )


def _same_count(one: onnx.TypeProto | None, other: onnx.TypeProto | None) -> bool:
    counts = [None if kind is None else element_count(kind) for kind in (one, other)]
    return None in counts or counts[0] == counts[1]


def element_count(kind: onnx.TypeProto) -> int | None:
    """Elements of a tensor of a static shape; None for other types."""
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return math.prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def tell_types_anew(model: onnx.ModelProto) -> None:
    """Drop the shapes that follow from the new ones, and give the outputs those that do."""
    import onnx

    opsets = opsets_of(model)
    unknown = {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}
    keep_only(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown:
            info.type.tensor_type.ClearField("shape")
    try:
        told = onnx.shape_inference.infer_shapes(light, data_prop=True).graph.output
    except Exception:  # what cannot be inferred is left as it was declared
        return
    for info, found in zip(model.graph.output, told, strict=True):
        if found.type.tensor_type.HasField("shape"):
            info.type.CopyFrom(found.type)
