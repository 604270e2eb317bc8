"""Infers types and shapes of tensors by onnx, also for other input shapes, and asks onnx whether a model is valid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import onnx_native, parts, walk
from biopsy.model.external import VALUE_FIELDS
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import no_such_input
from biopsy.model.load import parse
from biopsy.model.slice import without_weights as slice_without_weights
from biopsy.model.stripping import is_stripped
from biopsy.model.tensor_type import Dim, Shape, TensorType, elements

if TYPE_CHECKING:
    import onnx

_MOST_ELEMENTS = 1024
"""A larger tensor is no shape, axes or scales, so inference does not need its values."""


def infer_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The known types of tensors in the model's graph: declared, stored or inferred.

    Sequences, optionals, maps, tensors of unknown element type and tensors inside subgraphs are left out. Never raises:
    what cannot be inferred is missing.
    """
    infos = infer_value_infos(without_weights(model).SerializeToString())
    kinds = {name: parts.tensor_type(info) for name, info in infos.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None and kind.elem}


def infer_value_infos(model_bytes_without_weights: bytes) -> dict[str, bytes]:
    """A serialized ValueInfoProto for every tensor of the graph whose type, of any kind, is declared or inferred.

    ``model_bytes_without_weights`` is a serialized ModelProto, best without large weights (``without_weights``).
    Never raises: if inference fails, the declared types are returned.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(model_bytes_without_weights)
    except DecodeError:
        return {}
    graph = onnx_native.inferred(model).model.graph
    known = {
        weight.name: onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in graph.initializer
    }
    for infos in (graph.value_info, graph.output, graph.input):
        known.update((info.name, info) for info in infos if info.type.WhichOneof("value"))
    return {name: info.SerializeToString() for name, info in known.items() if name}


def type_untyped_outputs(model: onnx.ModelProto) -> None:
    """Give untyped outputs of the model, which ONNX does not allow, the inferred types. Never raises."""
    untyped = {info.name for info in model.graph.output if not info.type.WhichOneof("value")}
    if untyped:
        type_outputs(model, untyped)


def type_outputs(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Give outputs of the model the types inferred from its nodes; without one, an output stays. Never raises."""
    untyped = without_weights(model)
    for info in untyped.graph.output:
        if info.name in names:
            info.ClearField("type")
    infos = infer_value_infos(untyped.SerializeToString())
    for info in model.graph.output:
        if info.name in names and info.name in infos:
            info.type.CopyFrom(type(info).FromString(infos[info.name]).type)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model for inference only: each large or external initializer becomes an input of the same type.

    Large tensors inside subgraphs and attributes keep type and shape and lose their values. Large weights are never
    copied.
    """
    import onnx

    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.producer_name)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(onnx_native.bounded_functions(model))
    graph = light.graph
    graph.name = model.graph.name or "graph"
    for node in model.graph.node:
        graph.node.append(node)
        _empty_node(graph.node[-1])
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    inputs = {info.name for info in graph.input}
    for weight in model.graph.initializer:
        if _is_small(weight):
            graph.initializer.append(weight)
        elif weight.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    return light


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == 0 and elements(tensor.dims) <= _MOST_ELEMENTS


def _empty_node(node: onnx.NodeProto) -> None:
    """Remove the values of large tensors, marking them as external: to ONNX, their values are then elsewhere."""
    inner = [weight for body in walk.graphs_within([node]) for weight in body.initializer]
    attributes = (attribute for each in walk.nodes_within([node]) for attribute in each.attribute)
    for tensor in (*inner, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
        if not _is_small(tensor):
            for field in VALUE_FIELDS:
                tensor.ClearField(field)
            tensor.data_location = 1  # type: ignore[assignment]


_HEAD = "[ShapeInferenceError] Inference error(s): "
_UNKNOWN = "biopsy.unknown"
"""The domain to which operators are moved that onnx does not know."""


def judged_form(model: onnx.ModelProto, filled: Collection[str] = ()) -> onnx.ModelProto:
    """A copy of a model for ``checker_objection`` and ``inference_objection``.

    What onnx cannot know must be no objection, so large weights and those named in ``filled``, which get their values
    later, become inputs, and unknown operators get another domain.
    """
    from onnx import helper

    light = without_weights(model)
    valueless = {*filled, *(weight.name for weight in model.graph.initializer if is_stripped(weight))}
    kept = [weight for weight in light.graph.initializer if weight.name not in valueless]
    if len(kept) < len(light.graph.initializer):
        fed = {info.name for info in light.graph.input}
        light.graph.input.extend(
            helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
            for weight in light.graph.initializer
            if weight.name in valueless - fed
        )
        del light.graph.initializer[:]
        light.graph.initializer.extend(kept)
    unknown = [node for node in walk.nodes(light) if is_unknown(node)]
    for node in unknown:
        node.domain = _UNKNOWN
    if unknown:
        light.opset_import.add(domain=_UNKNOWN, version=1)
        for function in light.functions:
            function.opset_import.add(domain=_UNKNOWN, version=1)
    return light


def checker_objection(light: onnx.ModelProto) -> str | None:
    """Why onnx.checker refuses a model, in one line; None if it accepts it."""
    shaped = type(light).FromString(light.SerializeToString())
    for graph in walk.graphs(shaped):
        for info in (*graph.input, *graph.output):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.shape.SetInParent()  # the checker demands a shape, engines do not
    return _in_one_line(onnx_native.checker_objection(shaped))


def inference_objection(light: onnx.ModelProto) -> str | None:
    """Which types or shapes are contradictory, in one line; None if strict shape inference accepts the model."""
    return _in_one_line(onnx_native.inferred(light, strict=True).objection)


def _in_one_line(objection: str | None) -> str | None:
    return None if objection is None else " ".join(objection.split()).removeprefix(_HEAD)[:500]


def is_unknown(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is in ONNX's domain but unknown to onnx."""
    from onnx import defs

    return node.domain in {"", "ai.onnx"} and not defs.has(node.op_type)


def has_unknown(light: onnx.ModelProto) -> bool:
    """Whether onnx does not know all operators of a model; its shape inference then objects to nothing."""
    from onnx import defs

    local = {walk.function_key(function)[:2] for function in light.functions}
    operators = ((node.domain, node.op_type) for node in walk.nodes(light))
    return any((domain, op_type) not in local and not defs.has(op_type, domain) for domain, op_type in operators)


def override_input_shapes(
    index: ModelIndex, shapes: Mapping[str, Shape], option: str = "--model-input-shapes"
) -> frozenset[int]:
    """Give graph inputs other shapes, and update the declared shapes of the tensors computed from them.

    A symbol that gets a size in an input gets it in all these tensors. An inferred size replaces a declared one. A
    declared size that cannot be inferred stays, unless an input contradicts one of its own declared sizes: then it is
    left open.

    Returns the tensors whose sizes were all declared and are now open, if all inputs are static: only a run can find
    them. Raises DoesNotFit, naming ``option``, for a name that is no input, and for shapes with which strict shape
    inference refuses a model that it accepted before.
    """
    if not shapes:
        return frozenset()
    before = _objection(index)
    sizes: dict[str, Dim] = {}
    contradicted = False
    for name, shape in shapes.items():
        tensor = index.ids.get(name)
        if tensor is None or tensor not in index.inputs:
            raise no_such_input(option, name, [index.names[known] for known in index.fed_inputs()])
        declared = index.tensor_type(tensor)
        if declared is None:
            raise errors.DoesNotFit(f"{option}: the input {name!r} is no tensor: it has no shape to set")
        index.infos[tensor] = parts.value_info(name, TensorType(declared.elem, shape))
        contradicted |= _bind(declared.shape, shape, sizes)
    stale = _shaped_by(index, [index.ids[name] for name in shapes])
    inferred = infer_value_infos(slice_without_weights(undeclared(index, stale)))
    opened = set()
    for tensor, kind in stale.items():
        info = inferred.get(index.names[tensor])
        new = parts.tensor_type(info) if info is not None else None
        shape = _merged(kind.shape or (), None if new is None else new.shape, sizes, doubtful=contradicted)
        if shape != kind.shape:
            updated = TensorType(kind.elem, shape)
            index.infos[tensor] = parts.value_info(index.names[tensor], updated)
            if kind.is_static and not updated.is_static:
                opened.add(tensor)
    objection = _objection(index) if before is None else None
    if objection is not None:
        raise errors.DoesNotFit(
            f"{option}: the model cannot have these shapes: {objection}",
            next_steps=[f"give {option} sizes that the operators can work with"],
        )
    fed = (index.tensor_type(tensor) for tensor in index.fed_inputs())
    return frozenset(opened) if all(kind is not None and kind.is_static for kind in fed) else frozenset()


def _objection(index: ModelIndex) -> str | None:
    """The objection of strict shape inference to a model; None if it accepts it."""
    return inference_objection(judged_form(parse(slice_without_weights(index), index.path)))


def undeclared(index: ModelIndex, tensors: Iterable[int]) -> ModelIndex:
    """The same model without the declared shapes of some tensors; their element types stay."""
    infos = dict(index.infos)
    for tensor in tensors:
        kind = parts.tensor_type(infos[tensor])
        if kind is not None:
            infos[tensor] = parts.value_info(index.names[tensor], TensorType(kind.elem, None))
    return replace(index, infos=infos)


def _bind(declared: Shape | None, given: Shape, sizes: dict[str, Dim]) -> bool:
    """Add the size of each symbol to ``sizes``, None for several; True if a declared size or rank is contradicted."""
    if declared is None or len(declared) != len(given):
        return declared is not None
    for old, new in zip(declared, given, strict=True):
        if isinstance(old, str):
            sizes[old] = new if sizes.get(old, new) == new else None
    return any(isinstance(old, int) and old != new for old, new in zip(declared, given, strict=True))


def _shaped_by(index: ModelIndex, inputs: Iterable[int]) -> dict[int, TensorType]:
    """The tensors that depend on these inputs and have a declared shape, with their types."""
    waiting, seen = list(inputs), set[int]()
    while waiting:
        for node in index.consumers.get(waiting.pop(), ()):
            if node not in seen:
                seen.add(node)
                waiting += index.node_writes[node]
    behind = [tensor for tensor in sorted(index.infos) if index.producer.get(tensor) in seen]
    kinds = {tensor: parts.tensor_type(index.infos[tensor]) for tensor in behind}
    return {tensor: kind for tensor, kind in kinds.items() if kind is not None and kind.shape is not None}


def _merged(declared: Shape, inferred: Shape | None, sizes: Mapping[str, Dim], *, doubtful: bool) -> Shape:
    """A declared and an inferred shape in one; if ``doubtful``, a declared size counts only if it was inferred."""
    known = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]
    if inferred is not None and len(inferred) != len(known):
        return inferred
    return tuple(
        new if isinstance(new, int) or old is None or (doubtful and isinstance(old, int)) else old
        for old, new in zip(known, inferred or (None,) * len(known), strict=True)
    )
