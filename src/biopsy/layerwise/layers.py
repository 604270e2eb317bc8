"""The layers of a model: its nodes but Constants."""

from __future__ import annotations

import re
from collections.abc import Iterable

from biopsy.layerwise.findings import LayerNode, LayerOrigins
from biopsy.model.constant_nodes import constant_of_node, is_constant_node
from biopsy.model.index import ModelIndex, Node
from biopsy.model.sources import group_name, noted_source, places_of


def layers_of(index: ModelIndex, pattern: re.Pattern[str] | None = None) -> list[Node]:
    """The nodes that can be measured, all but Constants, of which the name, the operator or an output matches."""

    def words(node: Node) -> list[str]:
        return [node.label, node.name, node.op_type, *(index.names[tensor] for tensor in node.writes)]

    layers = [node for node in index.nodes if not is_constant_node(index, node.number)]
    return [node for node in layers if pattern is None or any(map(pattern.search, words(node)))]


def layer_node(index: ModelIndex, node: Node) -> LayerNode:
    """What a layer is, for a report."""
    return LayerNode(
        number=node.number,
        name=node.name,
        op_type=node.op_type,
        label=node.label,
        inputs=tuple(index.names[tensor] for tensor in node.reads if not _is_constant(index, tensor)),
        outputs=tuple(index.names[tensor] for tensor in node.writes),
        source=noted_source(index, node.number),
    )


def _is_constant(index: ModelIndex, tensor: int) -> bool:
    return tensor in index.weights or constant_of_node(index, tensor) is not None


def origins_of(index: ModelIndex, nodes: Iterable[int]) -> LayerOrigins:
    """Where some layers come from, and what they are together."""
    sources = [noted_source(index, node) for node in nodes]
    return LayerOrigins(name=group_name(sources), places=tuple(place.text for place in places_of(sources)))
