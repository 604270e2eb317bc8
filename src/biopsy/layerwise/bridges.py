"""Layers without a recorded value of their own: the next ones that have, in whose pieces they are measured.

Values that somebody recorded elsewhere, such as those of a PyTorch module, are not of every tensor: an exporter makes
several nodes of one operator. What lies between two tensors that have values is run as one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from biopsy.layerwise.subgraphs import Subgraphs
from biopsy.model.index import Node
from biopsy.model.random_operators import RANDOM


def bridges(subgraphs: Subgraphs) -> Mapping[int, tuple[int, ...]]:
    """Each layer that has no recorded output -> the layers at whose ends it is measured; none where nothing follows."""
    nodes = subgraphs.layers(range(len(subgraphs.index.nodes)))
    valued = [node for node in nodes if subgraphs.recorded_writes(node)]
    found: dict[int, list[int]] = {node: [] for node in nodes if not subgraphs.recorded_writes(node)}
    if found:
        for end in valued:
            for node in subgraphs.closed([end]) or ():
                if node in found:
                    found[node].append(end)
    return {node: tuple(ends) for node, ends in found.items()}


def with_ends(layers: Iterable[Node], found: Mapping[int, tuple[int, ...]], every: Iterable[Node]) -> list[Node]:
    """Some layers, and those at whose ends they are measured, in the order of the graph."""
    wanted = {number for layer in layers for number in (layer.number, *found.get(layer.number, ()))}
    return [layer for layer in every if layer.number in wanted and layer.op_type not in RANDOM]
