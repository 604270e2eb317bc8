"""How many nodes the calls of model-local functions stand for: a bound on what is put in their places.

Functions that call each other twice at forty levels stand for 2^40 nodes, and one that calls itself, which ONNX does
not allow, for ever more. Nothing here or in onnx could write them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.model.node import FunctionKey

if TYPE_CHECKING:
    import onnx

MOST_NODES = 100_000
"""No function that stands for more nodes is written out."""


def unbounded(functions: Iterable[onnx.FunctionProto], most: int = MOST_NODES) -> dict[FunctionKey, str]:
    """Why a function is not written out, for those that are not: they, or functions they call, are too large."""
    calls = {walk.function_key(function): _operators(function) for function in functions}
    sizes: dict[FunctionKey, float] = {}
    for root in calls:
        _measure(root, calls, sizes)
    return {
        key: "it calls itself" if size == float("inf") else f"it stands for more than {most} nodes"
        for key, size in sizes.items()
        if size > most
    }


def _operators(function: onnx.FunctionProto) -> list[FunctionKey]:
    """The operators of all nodes of a function, its bodies included, as often as they stand there."""
    inner = chain.from_iterable(graph.node for graph in walk.graphs_within(function.node))
    return [walk.operator(node) for node in chain(function.node, inner)]


def _measure(root: FunctionKey, calls: dict[FunctionKey, list[FunctionKey]], sizes: dict[FunctionKey, float]) -> None:
    """Count the nodes that a function stands for, those that it calls first; a way that closes is endless."""
    open_ones: dict[FunctionKey, None] = {}
    waiting = [root]
    while waiting:
        key = waiting[-1]
        if key in sizes:
            waiting.pop()
        elif key in open_ones:
            # What is still open when all that it calls has been looked at is on a way that closes.
            sizes[key] = sum(1 + (sizes.get(other, float("inf")) if other in calls else 0) for other in calls[key])
            del open_ones[key]
            waiting.pop()
        else:
            open_ones[key] = None
            waiting += [other for other in dict.fromkeys(calls[key]) if other in calls and other not in open_ones]
