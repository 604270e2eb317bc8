"""Which nodes of a model a reference engine may be asked to run, and what is lost with those that it may not."""

from __future__ import annotations

from collections.abc import Iterable

from biopsy.model.calls import unbounded
from biopsy.model.domains import PUBLIC_DOMAINS
from biopsy.model.index import ModelIndex
from biopsy.model.node import FunctionKey
from biopsy.model.node_order import neighbourhood_order


def unknown_operators(index: ModelIndex) -> set[int]:
    """Nodes that no engine here can know: of a domain that is neither the standard's nor the model's own."""
    own = {domain for domain, _, _ in index.functions}
    endless = _endless_functions(index)
    return {
        node.number
        for node in index.nodes
        if node.domain not in own | PUBLIC_DOMAINS or not endless.isdisjoint(node.calls)
    }


def without_dependents(index: ModelIndex, blocked: Iterable[int]) -> tuple[int, ...]:
    """All nodes but for some and those that depend on them, ascending."""
    gone = set(blocked)
    lost = {tensor for node in gone for tensor in index.node_writes[node]}
    for node in neighbourhood_order(index, range(len(index.nodes))):
        if node not in gone and not lost.isdisjoint(index.node_reads[node]):
            gone.add(node)
            lost.update(index.node_writes[node])
    return tuple(node for node in range(len(index.nodes)) if node not in gone)


def _endless_functions(index: ModelIndex) -> set[FunctionKey]:
    """Functions that stand for more nodes than any engine could run: none must be tried."""
    if not index.functions:
        return set()
    import onnx

    spans = b"".join(span for span, _ in index.functions.values())
    return set(unbounded(onnx.ModelProto.FromString(spans).functions))
