"""Inputs of nodes that an operator can do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import walk
from biopsy.reduction.change import ChangeSearch
from biopsy.reduction.passes.editing import Place, copied, drop_what_died, every_node, graph_at
from biopsy.reduction.passes.removal import propose_removals
from biopsy.reduction.passes.schemas import opsets_of, schema_of
from biopsy.reduction.passes.shapes import tell_types_anew

if TYPE_CHECKING:
    import onnx

Item: TypeAlias = tuple[Place, int, int]
"""An input of a node: the graph, the number of the node, the position."""


def optional_inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Leave out every optional input at once, then by halves; trailing ones vanish, others become ''."""
    yield from propose_removals(model, _optional(model), _without, "optional inputs of nodes")


def _without(model: onnx.ModelProto, gone: Sequence[Item]) -> onnx.ModelProto:
    made = copied(model)
    for place, number, position in gone:
        graph_at(made, place).node[number].input[position] = ""
    for place, number, _ in gone:
        inputs = graph_at(made, place).node[number].input
        while inputs and not inputs[-1]:
            del inputs[-1]
    drop_what_died(made, model)
    tell_types_anew(made)
    return made


def _optional(model: onnx.ModelProto) -> list[Item]:
    opsets = opsets_of(model)
    found = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        if schema is None or any(True for _ in walk.bodies(node)):
            continue  # what a Loop's trip count and condition are worth is no matter of leaving them out
        for position, name in enumerate(node.input):
            if name and position < len(schema.inputs) and _is_optional(schema.inputs[position]):
                found.append((place, number, position))
    return found


def _is_optional(parameter: onnx.defs.OpSchema.FormalParameter) -> bool:
    import onnx

    return bool(parameter.option == onnx.defs.OpSchema.FormalParameterOption.Optional)
