"""What a layer costs: roughly the operations that it computes, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx

Cost = Literal["flops", "bytes", "count"]
"""What is to be kept small of the layers in high precision: operations, bytes read and written, or their number."""

_Shape = tuple[int, ...] | None


def work_of(node: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> int:
    """Floating-point operations of a node: two for each multiplication with an addition, else one for each element.

    0 where shapes are not known.
    """
    result = next((shape for shape in outputs if shape is not None), None)
    first, second = (*inputs, None, None)[:2]
    elements = math.prod(result) if result is not None else 0
    if node.op_type == "MatMul" and first:
        return 2 * elements * first[-1]
    if node.op_type == "Gemm" and first and len(first) == 2:
        turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2 * elements * first[0 if turned else 1]
    if node.op_type == "Conv" and second:
        return 2 * elements * math.prod(second[1:])
    if node.op_type == "ConvTranspose" and first and second:
        return 2 * math.prod(first) * math.prod(second[1:])
    read = max((math.prod(shape) for shape in inputs if shape is not None), default=0)
    return max(elements, read)
