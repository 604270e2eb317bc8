"""The order of nodes in a graph: every node behind those that compute what it, or a body of it, reads."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk

if TYPE_CHECKING:
    import onnx


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put the nodes of a graph into topological order; those that may stand as they are keep their order.

    What a body of If, Loop or Scan captures counts as read by the node. Nodes that wait for each other, which no valid
    graph has, stay behind all others. A. B. Kahn, Topological sorting of large networks. CACM 5 (1962), 558-562.
    """
    order = _sorted([walk.reads(node) for node in graph.node], [set(node.output) for node in graph.node])
    if order != list(range(len(graph.node))):
        nodes = [graph.node[place] for place in order]
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _sorted(reads: Sequence[set[str]], writes: Sequence[set[str]]) -> list[int]:
    producer = {name: place for place, names in enumerate(writes) for name in names if name}
    needs = [{producer[name] for name in names if name in producer} - {place} for place, names in enumerate(reads)]
    readers: dict[int, list[int]] = {}
    for place, before in enumerate(needs):
        for other in before:
            readers.setdefault(other, []).append(place)
    ready = [place for place, before in enumerate(needs) if not before]
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers.get(place, ()):
            needs[reader].discard(place)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    return order + sorted(set(range(len(reads))) - set(order))
