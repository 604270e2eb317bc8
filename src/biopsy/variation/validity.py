"""Whether a changed model is as valid as the one that it was made from: what was true of that must be true of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.model.external import is_external
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.reduction.passes.editing import inferred, types_in
from biopsy.reduction.passes.schemas import opsets_of, schema_of
from biopsy.reduction.passes.shapes import has_ranks, is_consistent

if TYPE_CHECKING:
    import onnx

_MOST_BYTES = 1 << 26
"""A larger model is not shown to the checker of onnx, which would read all of it each time."""

_SCHEMA_NAMES = {"float32": "float", "float64": "double"}
"""How schemas name types that have another name in numpy."""


class Validity:
    """Holds changed models against what is true of ``model``: shapes agree, ranks are known, types are allowed.

    A large model, or one with weights in other files, is not shown to the checker of onnx, which would look for them.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        looks: list[Callable[[onnx.ModelProto], bool]] = [has_ranks, has_allowed_types, is_consistent]
        if model.ByteSize() <= _MOST_BYTES and not any(map(is_external, walk.tensors(model))):
            looks.append(_is_accepted)
        self._looks = [look for look in looks if look(model)]
        self.is_strict = is_consistent in self._looks

    def holds(self, model: onnx.ModelProto) -> bool:
        """Whether all that is true of the first model is true of this one."""
        return all(look(model) for look in self._looks)


def _is_accepted(model: onnx.ModelProto) -> bool:
    import onnx

    try:
        onnx.checker.check_model(model)
    except Exception:  # ValidationError, and whatever else the C++ side raises
        return False
    return True


def has_allowed_types(model: onnx.ModelProto) -> bool:
    """Whether no node of the model's graph reads a type that its operator does not take; unknown ones are passed over.

    Neither the checker of onnx nor its shape inference looks at that.
    """
    kinds, opsets = types_in(inferred(model).graph), opsets_of(model)
    return all(_is_allowed(node, schema_of(node, opsets), kinds) for node in model.graph.node)


def _is_allowed(node: onnx.NodeProto, schema: onnx.defs.OpSchema | None, kinds: Mapping[str, onnx.TypeProto]) -> bool:
    if schema is None or not schema.inputs:
        return True
    for place, name in enumerate(node.input):
        told = _type_name(kinds.get(name))
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if told is not None and formal.types and told not in formal.types:
            return False
    return True


def _type_name(kind: onnx.TypeProto | None) -> str | None:
    """The type of a tensor as schemas name it: "tensor(float)"; None for what is no tensor, or unknown."""
    if kind is None or kind.WhichOneof("value") != "tensor_type" or kind.tensor_type.elem_type not in DTYPE_OF_ELEM:
        return None
    name = DTYPE_OF_ELEM[kind.tensor_type.elem_type]
    return f"tensor({_SCHEMA_NAMES.get(name, name)})"
