"""Outputs of the model that are not needed, and the nodes that only served them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied, drop_what_died, keep_only
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx


def outputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop outputs by halves, down to one.

    An output that is all that its node is there for stays: to drop it would be to cut the node, which has been tried.
    """
    alone = _what_nodes_are_there_for(model.graph)
    others = [info.name for info in model.graph.output if info.name not in alone]

    def propose(kept: Sequence[str]) -> Change:
        gone = set(others).difference(kept)
        made = copied(model)
        keep_only(made.graph.output, lambda info: info.name not in gone)
        drop_what_died(made, model)
        return Change(made, f"{len(made.graph.output)} of {len(model.graph.output)} outputs")

    yield from minimize_subset(others, propose, at_least_one=len(others) == len(model.graph.output))


def _what_nodes_are_there_for(graph: onnx.GraphProto) -> set[str]:
    """Outputs of nodes that give out one tensor, which no other node reads."""
    read = {name for node in graph.node for name in walk.reads(node)}
    found = set()
    for node in graph.node:
        used = [name for name in node.output if name]
        if len(used) == 1 and used[0] not in read:
            found.add(used[0])
    return found
