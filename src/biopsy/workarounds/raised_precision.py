"""Nodes computed in a higher precision, with casts around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.mixed_precision.assembly import Assembly
from biopsy.mixed_precision.caster import mixed
from biopsy.mixed_precision.constants import Weights
from biopsy.mixed_precision.formats import BF16, FP16, FP32, FP64, OF_ELEM, Format
from biopsy.mixed_precision.functions import without_functions
from biopsy.mixed_precision.plan import Layer, PlannedGraph, PrecisionPlan, plan_of
from biopsy.workarounds.patch import Patch

if TYPE_CHECKING:
    import onnx

_BELOW = {FP32: {BF16, FP16}, FP64: {FP32}}
"""The precision that nodes are raised to -> those that they have before."""


def raised_precisions(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """Patches that compute these nodes of the main graph in a higher precision: each alone, then all together.

    fp16 and bf16 become float32, float32 becomes float64. Only nodes whose operator knows the type are taken. Calls of
    local functions are replaced by their nodes in the patched model. External weights are not read, but cast in the
    model.
    """
    found = []
    for high in (FP32, FP64):
        able = _raisable(model, high)
        chosen = [(place, able[name]) for place in nodes for name in _writes(model, place) if name in able]
        groups = [[each] for each in chosen] + ([chosen] if len(chosen) > 1 else [])
        found += [_patch(group, high) for group in groups]
    return sorted(found, key=lambda patch: len(patch.nodes))


def _writes(model: onnx.ModelProto, place: int) -> list[str]:
    return [name for name in model.graph.node[place].output if name][:1]


def _raisable(model: onnx.ModelProto, high: Format) -> dict[str, Layer]:
    """The layers of the main graph that compute in a lower precision, by their first outputs."""
    try:
        plan = plan_of(without_functions(model), frozenset({high.elem}))
    except errors.ModelError:
        return {}
    own = _own_formats(plan.graph)
    return {
        layer.writes: layer
        for layer in plan.layers
        if not layer.where and layer.number in own and own[layer.number] in _BELOW[high]
    }


def _own_formats(graph: PlannedGraph) -> dict[int, Format]:
    """The precision in which each layer computes in the model, those in bodies included."""
    found: dict[int, Format] = {}
    for node in graph.nodes:
        if node.number >= 0:
            elem = graph.elems.get(node.proto.output[node.part.outputs[0]], 0)
            found.update({node.number: OF_ELEM[elem]} if elem in OF_ELEM else {})
        for _, _, body in node.bodies:
            found |= _own_formats(body)
    return found


def _patch(chosen: Sequence[tuple[int, Layer]], high: Format) -> Patch:
    names = ", ".join(layer.label for _, layer in chosen[:3])
    more = f" and {len(chosen) - 3} more" if len(chosen) > 3 else ""
    written = [layer.writes for _, layer in chosen]
    return Patch(
        kind="precision",
        name=f"in-{high.name}",
        text=f"{names}{more}: computed in {high.name}, with casts around",
        cost=f"{'as much memory again' if high is FP64 else 'twice the memory'}, and slower, where these nodes compute",
        exact=False,
        nodes=tuple(place for place, _ in chosen),
        change=lambda model: raised(model, written, high),
    )


def raised(model: onnx.ModelProto, writes: Sequence[str], high: Format) -> onnx.ModelProto | None:
    """A copy of a model in which the nodes that write these tensors compute in a higher precision.

    None if one of them is not there, or cannot.
    """
    able = _raisable(model, high)
    if any(name not in able for name in writes):
        return None
    plan: PrecisionPlan = plan_of(without_functions(model), frozenset({high.elem}))
    own = _own_formats(plan.graph)
    chosen = {able[name].number for name in writes}
    made = mixed(plan, lambda number: high if number in chosen else own[number], "native", Weights(Path()))
    return type(model).FromString(b"".join(Assembly(plan.model, {}).parts(made)))
