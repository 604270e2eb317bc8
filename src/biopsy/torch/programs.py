"""Finds the operator at which a captured program raises, and the one whose decomposition by the exporter gives another
result than the operator itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from biopsy import errors
from biopsy.questions.layers.question import Judge
from biopsy.torch.arrays import type_in_model
from biopsy.torch.calls import Arguments
from biopsy.torch.evaluation import ModuleDifference, difference
from biopsy.torch.facts import ModuleLine
from biopsy.torch.places import node_of_exception, place_of_node
from biopsy.torch.recording import values_of_nodes

COMPARABLE = 0.1
"""The least share of an error that may explain it."""


def place_of_failure(program: Any, given: Arguments) -> ModuleLine:
    """The place of the operator at which a captured program raises for these arguments."""
    try:
        deque(values_of_nodes(program, given, {}), maxlen=0)
    except errors.BiopsyError as failure:
        node = node_of_exception(failure)
        if node is not None:
            return place_of_node(node)
    return ModuleLine(unknown="no operator of the program raises by itself")


def place_of_decomposition(
    captured: Any, decomposed: Any, given: Arguments, judge: Judge, whole: ModuleDifference
) -> ModuleLine | None:
    """The place of the first operator of a captured program that differs as a decomposed program computes it.

    Its error is at least comparable to the ``whole`` error. None if there is none, or if it is not known which nodes of
    the decomposed program an operator became.
    """
    nodes = {node.name: node for node in captured.graph.nodes if node.op == "call_function" and _is_tensor(node)}
    ends: dict[str, str] = {}  # the last node of what each operator became
    for node in decomposed.graph.nodes:
        origins = [name for name, target in _origins(node) if name in nodes and str(nodes[name].target) == target]
        if origins and _is_tensor(node):
            ends[origins[-1]] = node.name
    before = values_of_nodes(captured, given, {name: (name,) for name in ends})
    after = values_of_nodes(decomposed, given, {end: (name,) for name, end in ends.items()})
    try:
        for (name, expected), (other, actual) in zip(before, after, strict=True):
            if name != other:
                return None
            error = difference({name: actual}, {name: expected}, judge) if expected.size else None
            share = None if error is None else error.share_of(whole)
            if share is not None and share >= COMPARABLE:
                return place_of_node(nodes[name])
    except (errors.BiopsyError, ValueError):
        return None
    return None


def _is_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    return value is not None and type_in_model(value) is not None


def _origins(node: Any) -> Iterator[tuple[str, str]]:
    """The names and operators of the nodes that a node was made of, graph by graph, those of the first graph last."""
    waiting = list(node.meta.get("from_node") or ())
    while waiting:
        source = waiting.pop()
        if source.node_info is not None:
            yield source.node_info.name, source.node_info.target
        waiting += source.from_node
