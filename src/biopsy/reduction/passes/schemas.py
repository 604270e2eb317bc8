"""What onnx knows of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from biopsy.model import schema, walk

if TYPE_CHECKING:
    import onnx


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Version of each operator set that a model imports; ONNX's own is ""."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator in the model's operator sets; None for operators that onnx does not know."""
    domain = walk.operator(node)[0]
    return schema.schema_of(node.op_type, opsets.get(domain, 1), domain)
