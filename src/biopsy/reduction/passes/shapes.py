"""Whether the shapes of a model agree, and the types that follow from what was changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from biopsy.model import onnx_native, walk
from biopsy.model.infer import without_weights
from biopsy.reduction.change import Change
from biopsy.reduction.passes.editing import Place, graph_at, inferred, keep_only, types_in
from biopsy.reduction.passes.schemas import opsets_of, schema_of

if TYPE_CHECKING:
    import onnx


def is_consistent(model: onnx.ModelProto) -> bool:
    """Whether shapes agree as far as shape inference can tell, and every Reshape keeps the number of elements."""
    inference = onnx_native.inferred(without_weights(model), strict=True)
    if inference.objection is not None:
        return False
    told = inference.model
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


def unrefuted(current: onnx.ModelProto, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes that shape inference does not refute, and whose ends have ranks; all, where the model is so itself.

    The checker of onnx wants a rank of every input and output.
    """
    strict = ranked = None
    for change in changes:
        strict = is_consistent(current) if strict is None else strict
        ranked = has_ranks(current) if ranked is None else ranked
        if (not strict or is_consistent(change.model)) and (not ranked or has_ranks(change.model)):
            yield change


def has_ranks(model: onnx.ModelProto) -> bool:
    """Whether every input and output that is a tensor has a type and a rank."""
    kinds = [info.type for info in (*model.graph.input, *model.graph.output)]
    return all(kind.WhichOneof("value") not in {None, "tensor_type"} or _is_ranked(kind.tensor_type) for kind in kinds)


def _is_ranked(kind: onnx.TypeProto.Tensor) -> bool:
    return kind.elem_type != 0 and kind.HasField("shape")


def tell_types_anew(model: onnx.ModelProto) -> None:
    """Drop the shapes that follow from the new ones, and give the outputs those that do."""
    opsets = opsets_of(model)
    unknown = {name for node in model.graph.node if schema_of(node, opsets) is None for name in node.output}
    keep_only(model.graph.value_info, lambda info: info.name in unknown)
    light = without_weights(model)
    for info in light.graph.output:
        if info.name not in unknown and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    told = onnx_native.inferred(light).model.graph.output
    for info, found in zip(model.graph.output, told, strict=True):
        if found.type.tensor_type.HasField("shape"):
            info.type.CopyFrom(found.type)


def forget_shapes_behind(model: onnx.ModelProto, place: Place, changed: Iterable[str]) -> None:
    """Tell anew the types that follow from tensors of the graph at a place, whose shapes may be others now.

    What cannot be inferred keeps its rank, which is likelier than any other.
    """
    names, behind = set(changed), set[str]()
    for depth in range(len(place), -1, -1):
        graph = graph_at(model, place[:depth])
        behind = _behind(graph, names)
        for info in (*graph.value_info, *graph.output):
            if info.name in behind:
                _forget_sizes(info)
        if depth:
            names = set(graph_at(model, place[: depth - 1]).node[place[depth - 1][0]].output)
    kinds = types_in(inferred(model).graph)
    for info in (*model.graph.value_info, *model.graph.output):
        if info.name in behind and info.name in kinds:
            info.type.CopyFrom(kinds[info.name])


def _behind(graph: onnx.GraphProto, names: set[str]) -> set[str]:
    """The names of tensors and of all that is computed from them; bodies that read them forget sizes."""
    found = set(names)
    for node in graph.node:
        if not found.isdisjoint(walk.reads(node)):
            found.update(node.output)
            for body in walk.graphs_within([node]):
                for info in (*body.input, *body.output, *body.value_info):
                    _forget_sizes(info)
    return found - {""}


def _forget_sizes(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
