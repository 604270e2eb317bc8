"""How many nodes the calls of model-local functions stand for: a bound on what is put in their places.

Functions that call each other twice at forty levels stand for 2^40 nodes, and one that calls itself, which ONNX does
not allow, for ever more. Nothing here or in onnx could write them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import walk
from biopsy.model.node import FunctionKey
from biopsy.model.wire import BYTES, fields

if TYPE_CHECKING:
    import onnx

MOST_NODES = 100_000
"""No function that stands for more nodes is written out."""

MOST_NODES_OF_ENGINES = 10_000_000
"""Engines write functions out as well, some of them for as long as there is memory: none is handed a larger one."""

_FUNCTIONS = 25  # field number in ModelProto


def require_bounded(data: bytes, path: Path | None = None) -> None:
    """Raise ModelError if a function of a serialized model stands for more nodes than any engine could write out.

    ``path`` is only named in the message.
    """
    try:
        own = b"".join(
            [data[tag:end] for number, kind, tag, _, end in fields(data) if (number, kind) == (_FUNCTIONS, BYTES)]
        )
    except errors.ModelError:  # another format, such as .ort, or damaged: whoever reads it tells
        return
    if not own:
        return
    import onnx

    functions = onnx.ModelProto.FromString(own).functions
    for (domain, name, _), why in unbounded(functions, MOST_NODES_OF_ENGINES).items():
        raise errors.ModelError(
            f"the model {path or 'in memory'} cannot be run: of its function '{domain}::{name}', {why}"
        )


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
