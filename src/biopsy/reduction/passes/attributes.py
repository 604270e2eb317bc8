"""Attributes that an operator can do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import Place, copied, every_node, graph_at, keep_only
from biopsy.reduction.passes.fewest import fewest
from biopsy.reduction.passes.schemas import opsets_of, schema_of

if TYPE_CHECKING:
    import onnx


def attributes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove every attribute that has a default or may be missing, all at once, then by halves."""
    able = _removable(model)

    def propose(kept: Sequence[tuple[Place, int, str]]) -> Change:
        gone = [item for item in able if item not in kept]
        made = copied(model)
        for place, number, name in gone:
            keep_only(graph_at(made, place).node[number].attribute, lambda entry: entry.name != name)  # noqa: B023
        return Change(made, f"without {len(gone)} of {len(able)} attributes")

    yield from fewest(able, propose)


def _removable(model: onnx.ModelProto) -> list[tuple[Place, int, str]]:
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
