"""The layers of a model: its nodes but Constants."""

from __future__ import annotations

import re

from biopsy.layerwise.findings import LayerNode
from biopsy.model.constant_nodes import is_constant_node
from biopsy.model.index import ModelIndex, Node
from biopsy.model.node_source import source_of


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
        inputs=tuple(index.names[tensor] for tensor in node.reads if tensor not in index.weights),
        outputs=tuple(index.names[tensor] for tensor in node.writes),
        source=source_of(index.node_payload(node.number)),
    )
