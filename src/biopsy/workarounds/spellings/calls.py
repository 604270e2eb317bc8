"""Calls of a model's own functions, with the nodes of the functions in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.passes.inline import called_functions, inlined
from biopsy.text import printable
from biopsy.workarounds.patch import Patch

if TYPE_CHECKING:
    import onnx


def calls_as_nodes(model: onnx.ModelProto, nodes: Sequence[int]) -> Iterator[Patch]:
    """One patch for each local function that these nodes of the main graph call; it changes all calls of it.

    Functions that call themselves, or would become too many nodes, are left out.
    """
    able = set(called_functions(model))
    places: dict[tuple[str, str], list[int]] = {}
    for place in nodes:
        domain, name, _ = walk.operator(model.graph.node[place])
        if (domain, name) in able:
            places.setdefault((domain, name), []).append(place)
    for function, found in places.items():
        yield _patch(function, found)


def _patch(function: tuple[str, str], places: Sequence[int]) -> Patch:
    return Patch(
        kind="spelling",
        name="call-as-nodes",
        text=f"calls of {printable(function[1])!r} written as the nodes of the function",
        cost="nothing, or a fusion that the engine has for the function",
        exact=True,
        nodes=tuple(places),
        change=lambda model: _inlined(model, function),
    )


def _inlined(model: onnx.ModelProto, function: tuple[str, str]) -> onnx.ModelProto | None:
    if function not in called_functions(model):
        return None
    made = inlined(model, [function])
    return None if any(walk.operator(node)[:2] == function for node in walk.nodes(made)) else made
