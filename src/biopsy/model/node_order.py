"""Orders of nodes in which neighbours in the graph are neighbours in the list."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.model.index import ModelIndex


def neighbourhood_order(index: ModelIndex, nodes: Sequence[int]) -> list[int]:
    """The nodes in a topological order that follows a branch to its end before it begins the next.

    A piece of this list is a connected part of the graph far more often than a piece of the model's own order, where
    exporters interleave branches. Nodes on a cycle, which no valid model has, come last.
    """
    kept = set(nodes)
    producer, consumers = index.producer, index.consumers
    waiting = {
        node: len({producer[tensor] for tensor in index.node_reads[node] if producer.get(tensor, -1) in kept} - {node})
        for node in nodes
    }
    ready = [node for node in reversed(nodes) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        followers = {
            follower for tensor in index.node_writes[node] for follower in consumers.get(tensor, ()) if follower in kept
        }
        for follower in sorted(followers - {node}, reverse=True):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if len(order) < len(kept):
        placed = set(order)
        order += [node for node in nodes if node not in placed]
    return order
