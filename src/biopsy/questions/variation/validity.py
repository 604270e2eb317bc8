"""Tests whether a changed model is as valid as the original, and infers its new types.

The checker and the shape inference of onnx are native code that an odd attribute may crash, so they run in a child
process. A model that crashes it is not valid.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from biopsy.model import onnx_native, walk
from biopsy.model.infer import without_weights
from biopsy.model.load import parse
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.processes.process import CannotStartError
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits
from biopsy.reduction.passes.common import (
    copied,
    has_ranks,
    inferred,
    is_consistent,
    opsets_of,
    schema_of,
    types_in,
)
from biopsy.slow_imports import onnx

_MOST_BYTES = 1 << 26
"""The largest model whose weights are passed to onnx and its checker."""

_LIMITS = Limits(seconds=30.0)

_SCHEMA_NAMES = {"float32": "float", "float64": "double"}
"""Names in schemas of types that numpy names otherwise."""


class Validity:
    """Tests whether changed models have the same properties of validity as ``model``.

    ``is_strict``: the model keeps the standard, as far as onnx can tell, so that a change that breaks it shows.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._server = Server(__name__)
        answer = self._ask(model, None)
        self._properties: list[str] = [] if answer is None else answer["properties"]
        is_sound = "well formed" in self._properties or "ranks are known" not in self._properties  # which it demands
        self.is_strict = is_sound and {"shapes agree", "types are allowed"} <= {*self._properties}

    def validated(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """A changed model with inferred types; None if it has lost a property."""
        answer = self._ask(model, self._properties)
        if answer is None or not answer["is_valid"]:
            return None
        typed = copied(model)
        unknown = _names_without_types(model)
        walk.keep(typed.graph.value_info, lambda info: info.name in unknown)
        for info, kind in zip(typed.graph.output, answer["outputs"], strict=True):
            info.ParseFromString(b64decode(kind))
        return typed

    def close(self) -> None:
        """End the child process."""
        self._server.close()

    def _ask(self, model: onnx.ModelProto, properties: list[str] | None) -> dict[str, Any] | None:
        """The answer of the child process; None if it crashes or takes too long."""
        is_whole = model.ByteSize() <= _MOST_BYTES
        data = (model if is_whole else without_weights(model)).SerializeToString()
        request = {"model": b64encode(data).decode(), "is_whole": is_whole, "properties": properties}
        try:
            return self._server.ask(request, _LIMITS)
        except (ServerEndedError, CannotStartError):
            return None


def _names_without_types(model: onnx.ModelProto) -> set[str]:
    """Names of tensors without inferable types: outputs of operators that onnx does not know."""
    opsets = opsets_of(model)
    return {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}


def main() -> int:
    """Answer the requests in the child process."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    model = parse(b64decode(request["model"]), None)
    properties: list[str] | None = request["properties"]
    if properties is None:
        known = [name for name in _PROPERTIES if request["is_whole"] or name != "well formed"]
        return {"properties": [name for name in known if _PROPERTIES[name](model)]}
    # Drop inferred types, and give the outputs those inferred now, also other element types, unlike a reduction.
    unknown = _names_without_types(model)
    walk.keep(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown:
            info.ClearField("type")
    inferred_outputs = onnx_native.inferred(light).model.graph.output
    for info, inferred_info in zip(model.graph.output, inferred_outputs, strict=True):
        kind, declared = inferred_info.type.tensor_type, info.type.tensor_type
        if not kind.elem_type:
            continue
        if declared.HasField("shape") and not kind.HasField("shape"):  # onnx infers none: the rank is taken to stay
            kind.shape.dim.extend(kind.shape.Dimension() for _ in declared.shape.dim)
            kind.shape.SetInParent()
        info.type.CopyFrom(inferred_info.type)
    return {
        "is_valid": all(_PROPERTIES[name](model) for name in properties),
        "outputs": [b64encode(info.SerializeToString()).decode() for info in model.graph.output],
    }


def has_allowed_types(model: onnx.ModelProto) -> bool:
    """Whether each node of the model's graph reads types that its operator allows; unknown types count as allowed.

    Neither the checker of onnx nor its shape inference tests this.
    """
    kinds, opsets = types_in(inferred(model).graph), opsets_of(model)
    for node in model.graph.node:
        schema = schema_of(node, opsets)
        for place, name in enumerate(node.input if schema is not None and schema.inputs else ()):
            kind = kinds.get(name)
            if kind is None or kind.WhichOneof("value") != "tensor_type" or schema is None:
                continue
            dtype = DTYPE_OF_ELEM.get(kind.tensor_type.elem_type)
            types = schema.inputs[min(place, len(schema.inputs) - 1)].types
            if dtype is not None and types and f"tensor({_SCHEMA_NAMES.get(dtype, dtype)})" not in types:
                return False
    return True


_PROPERTIES: Mapping[str, Callable[[Any], bool]] = {
    "ranks are known": has_ranks,
    "types are allowed": has_allowed_types,
    "shapes agree": is_consistent,
    "well formed": lambda model: onnx_native.checker_objection(model) is None,
}
