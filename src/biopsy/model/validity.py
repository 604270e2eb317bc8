"""What onnx itself says against a model: its checker, and its shape inference where types and shapes contradict.

Both look at the model without its large weights, as ``infer.without_weights`` makes it. What onnx cannot know is no
objection: operators that it does not have, weights that were left out, outputs whose shape nobody tells.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from biopsy.model import infer, onnx_native, walk
from biopsy.model.stripping import is_stripped

if TYPE_CHECKING:
    import onnx

_HEAD = "[ShapeInferenceError] Inference error(s): "
_UNKNOWN = "biopsy.unknown"
"""The domain that unknown operators are moved to: nobody knows an operator of it."""


def judged_form(model: onnx.ModelProto, filled: Collection[str] = ()) -> onnx.ModelProto:
    """A copy of a model for the two judges: without large weights, unknown operators in a domain of their own.

    ``filled`` names weights that will get their values later.
    """
    light = infer.without_weights(model)
    _drop_values(light, {*filled, *(weight.name for weight in model.graph.initializer if is_stripped(weight))})
    _set_unknown_apart(light)
    return light


def checker_objection(light: onnx.ModelProto) -> str | None:
    """Why onnx.checker refuses a model, in one line; None if it accepts it."""
    shaped = type(light).FromString(light.SerializeToString())
    for graph in walk.graphs(shaped):
        for info in (*graph.input, *graph.output):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.shape.SetInParent()  # the checker wants to see some; engines do not
    return _in_one_line(onnx_native.checker_objection(shaped))


def inference_objection(light: onnx.ModelProto) -> str | None:
    """Which types or shapes contradict each other, in one line; None if strict shape inference accepts the model."""
    return _in_one_line(onnx_native.inferred(light, strict=True).objection)


def _in_one_line(objection: str | None) -> str | None:
    return None if objection is None else " ".join(objection.split()).removeprefix(_HEAD)[:500]


def _drop_values(light: onnx.ModelProto, names: set[str]) -> None:
    """Make inputs of some initializers."""
    from onnx import helper

    graph = light.graph
    gone = [weight for weight in graph.initializer if weight.name in names]
    if not gone:
        return
    kept = [weight for weight in graph.initializer if weight.name not in names]
    fed = {info.name for info in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in gone
        if weight.name not in fed
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)


def is_unknown(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is said to be one of ONNX, and onnx has none of this name."""
    from onnx import defs

    return node.domain in {"", "ai.onnx"} and not defs.has(node.op_type)


def has_unknown(light: onnx.ModelProto) -> bool:
    """Whether onnx has not all operators of a model: then its shape inference objects to nothing."""
    from onnx import defs

    own = {walk.function_key(function)[:2] for function in light.functions}
    return any(
        (node.domain, node.op_type) not in own and not defs.has(node.op_type, node.domain) for node in walk.nodes(light)
    )


def _set_unknown_apart(light: onnx.ModelProto) -> None:
    found = False
    for node in walk.nodes(light):
        if is_unknown(node):
            node.domain = _UNKNOWN
            found = True
    if found:
        light.opset_import.add(domain=_UNKNOWN, version=1)
        for function in light.functions:
            function.opset_import.add(domain=_UNKNOWN, version=1)
