"""Whether a changed model is as valid as the one that it was made from, and the types that follow from the change.

The checker of onnx and its shape inference are native code that an odd attribute may bring down, so they work in a
child process. A model that ends it is not valid.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import onnx

_MOST_BYTES = 1 << 26
"""Of a larger model the weights are not shown to onnx, and its checker is not asked."""

_LIMITS = Limits(seconds=30.0)

_SCHEMA_NAMES = {"float32": "float", "float64": "double"}
"""How schemas name types that have another name in numpy."""


class Validity:
    """Holds changed models against what is true of ``model``: it is well formed, shapes agree, types are allowed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._server = Server(__name__)
        answer = self._ask(model, None)
        self._looks: list[str] = [] if answer is None else answer["looks"]
        self.is_strict = "shapes agree" in self._looks

    def told(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """A changed model with the types that follow from the change; None if anything is not true of it any more."""
        answer = self._ask(model, self._looks)
        if answer is None or not answer["is_valid"]:
            return None
        made = copied(model)
        unknown = _untold(model)
        walk.keep(made.graph.value_info, lambda info: info.name in unknown)
        for info, kind in zip(made.graph.output, answer["outputs"], strict=True):
            info.ParseFromString(b64decode(kind))
        return made

    def close(self) -> None:
        """End the child process."""
        self._server.close()

    def _ask(self, model: onnx.ModelProto, looks: list[str] | None) -> dict[str, Any] | None:
        """What the child says of a model; None if it ends of it, or takes too long."""
        is_whole = model.ByteSize() <= _MOST_BYTES
        data = (model if is_whole else without_weights(model)).SerializeToString()
        request = {"model": b64encode(data).decode(), "is_whole": is_whole, "looks": looks}
        try:
            return self._server.ask(request, _LIMITS)
        except (ServerEndedError, CannotStartError):
            return None


def _untold(model: onnx.ModelProto) -> set[str]:
    """Names of tensors of whose types nothing can be inferred: what operators compute that onnx does not know."""
    opsets = opsets_of(model)
    return {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}


# The child's side


def main() -> int:
    """Answer the requests."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    model = parse(b64decode(request["model"]), None)
    looks: list[str] | None = request["looks"]
    if looks is None:
        known = [name for name in _LOOKS if request["is_whole"] or name != "well formed"]
        return {"looks": [name for name in known if _LOOKS[name](model)]}
    # Drop the types that followed from others, and give the outputs those that follow now, as far as they can be told;
    # unlike what reducing does, other element types too.
    unknown = _untold(model)
    walk.keep(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown:
            info.ClearField("type")
    inferred_outputs = onnx_native.inferred(light).model.graph.output
    for info, inferred_info in zip(model.graph.output, inferred_outputs, strict=True):
        if inferred_info.type.tensor_type.elem_type:
            info.type.CopyFrom(inferred_info.type)
    return {
        "is_valid": all(_LOOKS[name](model) for name in looks),
        "outputs": [b64encode(info.SerializeToString()).decode() for info in model.graph.output],
    }


def has_allowed_types(model: onnx.ModelProto) -> bool:
    """Whether no node of the model's graph reads a type that its operator does not take; unknown ones are passed over.

    Neither the checker of onnx nor its shape inference looks at that.
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


_LOOKS: Mapping[str, Callable[[Any], bool]] = {
    "ranks are known": has_ranks,
    "types are allowed": has_allowed_types,
    "shapes agree": is_consistent,
    "well formed": lambda model: onnx_native.checker_objection(model) is None,
}
