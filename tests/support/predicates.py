"""Failures that are a property of the candidate: what a check would find, without the cost of an engine."""

from collections.abc import Callable

import onnx

Predicate = Callable[[onnx.ModelProto], bool]


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def has(*wanted: str) -> Predicate:
    """All of the nodes with these names are there."""
    return lambda model: set(wanted) <= set(names(model))


def has_any(*wanted: str) -> Predicate:
    """One of the nodes with these names is there."""
    return lambda model: bool(set(wanted) & set(names(model)))


def connected(first: str, last: str) -> Predicate:
    """Both nodes are there, and the second depends on the first."""

    def fails(model: onnx.ModelProto) -> bool:
        reached: set[str] = set()
        for node in model.graph.node:
            if node.name == first or reached & set(node.input):
                reached.update(node.output)
                if node.name == last:
                    return True
        return False

    return fails
