"""The order of nodes in a graph: every node behind those that compute what it, or a body of it, reads."""

from __future__ import annotations

import heapq
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk

if TYPE_CHECKING:
    import onnx


def sort_nodes(nodes: MutableSequence[onnx.NodeProto]) -> None:
    """Put the nodes of a graph or function into topological order; those that may stand as they are keep their order.

    Nodes that wait for each other, which no valid graph has, and those behind them stay behind all others.
    """
    order = sorted_places(nodes)
    rearrange(nodes, order + sorted(set(range(len(nodes))) - set(order)))


def sorted_places(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of nodes in topological order, but for those that wait for each other and those behind them.

    What a body of If, Loop or Scan captures counts as read by the node. A. B. Kahn, Topological sorting of large
    networks. CACM 5 (1962), 558-562.
    """
    producer = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    behind: dict[int, list[int]] = {}
    missing = []
    for place, node in enumerate(nodes):
        before = {producer[name] for name in walk.reads(node) if name in producer}
        missing.append(len(before))
        for other in before:
            behind.setdefault(other, []).append(place)
    ready = [place for place, number in enumerate(missing) if number == 0]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for other in behind.get(place, ()):
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    return order


def rearrange(nodes: MutableSequence[onnx.NodeProto], order: Sequence[int]) -> None:
    """Put nodes into another order of their places."""
    if list(order) != list(range(len(nodes))):
        listed = list(nodes)
        copies = [type(listed[place]).FromString(listed[place].SerializeToString()) for place in order]
        del nodes[:]
        nodes.extend(copies)
