"""Attributes that an operator can do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.reduction.change import ChangeSearch
from biopsy.reduction.passes.editing import Place, copied, every_node, graph_at, keep_only
from biopsy.reduction.passes.removal import propose_removals
from biopsy.reduction.passes.schemas import opsets_of, schema_of
from biopsy.reduction.passes.shapes import tell_types_anew

if TYPE_CHECKING:
    import onnx

Item: TypeAlias = tuple[Place, int, str]
"""An attribute: the graph, the number of the node, the name."""


def attributes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove every attribute that has a default or may be missing, all at once, then by halves."""
    yield from propose_removals(model, _removable(model), _without, "attributes")


def _without(model: onnx.ModelProto, gone: Sequence[Item]) -> onnx.ModelProto:
    made = copied(model)
    for place, number, name in gone:
        keep_only(graph_at(made, place).node[number].attribute, lambda entry: entry.name != name)  # noqa: B023 -- at once
    tell_types_anew(made)
    return made


def _removable(model: onnx.ModelProto) -> list[Item]:
    """Attributes that the schema does not require, and those that it does not know; bodies stay."""
    opsets = opsets_of(model)
    found = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        for attribute in node.attribute if schema is not None else ():
            known = schema.attributes.get(attribute.name) if schema is not None else None
            has_body = attribute.HasField("g") or attribute.graphs
            if not has_body and (known is None or not known.required):
                found.append((place, number, attribute.name))
    return found
