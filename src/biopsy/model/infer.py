"""Types and shapes of the tensors between nodes, by onnx's own shape inference, without handing it the weights.

Inference copies the model several times. With large weights replaced by inputs of the same type it takes a millisecond
where the whole model takes half a second; small ones stay, because shapes are computed from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from biopsy.model import onnx_native, value_info, walk
from biopsy.model.external import VALUE_FIELDS
from biopsy.model.storage import elements
from biopsy.model.tensor_type import TensorType

if TYPE_CHECKING:
    import onnx

_MOST_ELEMENTS = 1024
"""A larger tensor is no shape, no list of axes and no set of scales: its values tell inference nothing."""


def infer_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """Element type and shape of every tensor of the model's graph that can be told: declared, stored or inferred.

    Sequences, optionals, maps and tensors of unknown element type are left out; so are tensors inside subgraphs.
    Never raises: what cannot be inferred is missing.
    """
    found = {}
    for name, info in infer_value_infos(without_weights(model).SerializeToString()).items():
        kind = value_info.tensor_type(info)
        if kind is not None and kind.elem:
            found[name] = kind
    return found


def infer_value_infos(model_bytes_without_weights: bytes) -> dict[str, bytes]:
    """A serialized ValueInfoProto for every tensor of the graph whose type is declared or inferred, of any kind.

    ``model_bytes_without_weights`` is a serialized ModelProto, best without large weights (``without_weights``).
    Never raises: if inference fails as a whole, the types that the model declares are returned.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(model_bytes_without_weights)
    except DecodeError:
        return {}
    return _infos(onnx_native.inferred(model).model.graph)


def _infos(graph: onnx.GraphProto) -> dict[str, bytes]:
    from onnx import helper

    found = {
        weight.name: helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in graph.initializer
    }
    for infos in (graph.value_info, graph.output, graph.input):
        found.update((info.name, info) for info in infos if info.type.WhichOneof("value"))
    return {name: info.SerializeToString() for name, info in found.items() if name}


def type_untyped_outputs(model: onnx.ModelProto) -> None:
    """``type_outputs`` of those that have none, such as tensors that were made outputs: ONNX wants them typed."""
    untyped = {info.name for info in model.graph.output if not info.type.WhichOneof("value")}
    if untyped:
        type_outputs(model, untyped)


def type_outputs(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Give outputs of the model the types that follow from its nodes, where these can be told. Never raises."""
    untyped = without_weights(model)
    for info in untyped.graph.output:
        if info.name in names:
            info.ClearField("type")
    found = infer_value_infos(untyped.SerializeToString())
    for info in model.graph.output:
        if info.name in names and info.name in found:
            info.type.CopyFrom(type(info).FromString(found[info.name]).type)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model for inference: each large or external initializer is an input of the same type.

    Large tensors inside subgraphs and attributes keep type and shape and lose their values. The weights are not copied
    on the way. The copy is valid for inference only.
    """
    import onnx
    from onnx import helper

    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.producer_name)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(onnx_native.bounded_functions(model))
    graph = light.graph
    graph.name = model.graph.name or "graph"
    _copy_nodes(graph, model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    inputs = {info.name for info in graph.input}
    for weight in model.graph.initializer:
        if _is_small(weight):
            graph.initializer.append(weight)
        elif weight.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    return light


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == 0 and elements(tensor.dims) <= _MOST_ELEMENTS


def _copy_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Copy nodes; one that holds large tensors is copied attribute by attribute, the tensors without values."""
    for node in nodes:
        if _is_light(node):
            graph.node.append(node)
        else:
            _emptied(graph.node.add(), node)


def _is_light(node: onnx.NodeProto) -> bool:
    return all(not attribute.HasField("t") or _is_small(attribute.t) for attribute in node.attribute) and not any(
        True for _ in walk.bodies(node)
    )


def _emptied(target: onnx.NodeProto, node: onnx.NodeProto) -> None:
    target.CopyFrom(node)
    for attribute in target.attribute:
        if attribute.HasField("t"):
            _empty(attribute.t)
    for body in walk.graphs_within([target]):
        for weight in body.initializer:
            _empty(weight)
        for inner in body.node:
            for attribute in inner.attribute:
                if attribute.HasField("t"):
                    _empty(attribute.t)


def _empty(tensor: onnx.TensorProto) -> None:
    """Take the values from a large tensor: "elsewhere" is how ONNX says that they are not here."""
    if _is_small(tensor):
        return
    for field in VALUE_FIELDS:
        tensor.ClearField(field)
    tensor.data_location = 1  # type: ignore[assignment]
