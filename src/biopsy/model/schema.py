"""What onnx knows of an operator, asked with whatever a model says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_LARGEST_VERSION = (1 << 31) - 1
"""onnx takes no greater one; a model may say anything."""


def schema_of(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """The schema of an operator; None for what onnx does not know, such as a name that is no Unicode."""
    import onnx

    try:
        return onnx.defs.get_schema(op_type, min(version, _LARGEST_VERSION), domain)
    except (onnx.defs.SchemaError, TypeError, UnicodeError):
        return None
