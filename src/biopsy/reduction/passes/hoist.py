"""The nodes of one branch, one trip or one function in place of the node that runs them, cut down to what matters."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import Place, copied, described, drop_what_died, every_node, graph_at
from biopsy.reduction.passes.inline import called_functions, inlined
from biopsy.reduction.passes.nested_search import nested_search
from biopsy.reduction.passes.shapes import forget_shapes_behind
from biopsy.reduction.passes.unfold import Unfold, unfolded_if, unfolded_loop, unfolded_scan

if TYPE_CHECKING:
    import onnx


def hoist(model: onnx.ModelProto) -> ChangeSearch:
    """Hoist one body after the other, outer ones first; after each, the nodes are searched again."""
    known: set[bytes] = set()
    while True:
        answer = yield from _hoisted_one(model, known)
        if answer is None:
            return
        model = yield from nested_search(answer)


def _hoisted_one(
    model: onnx.ModelProto, known: set[bytes]
) -> Generator[Iterable[Change], onnx.ModelProto | None, onnx.ModelProto | None]:
    """The first model that reproduces with a control-flow node or a call less; None if there is none.

    ``known`` are nodes that have been tried in vain: what else is in the model has not helped them so far.
    """
    for place, number, node in every_node(model):
        tried = node.SerializeToString(deterministic=True)
        if tried not in known:
            changes = list(_ways(model, place, number, node))
            answer = (yield changes) if changes else None
            if answer is not None:
                return answer
            known.add(tried)
    return None


def _ways(model: onnx.ModelProto, place: Place, number: int, node: onnx.NodeProto) -> Iterator[Change]:
    domain, operator, _ = walk.operator(node)
    words = described(node)
    if (domain, operator) == ("", "If"):
        for attribute in ("then_branch", "else_branch"):
            yield from _unfolding(model, place, number, unfolded_if(attribute), f"{attribute} in place of {words}")
    elif (domain, operator) == ("", "Loop"):
        yield from _unfolding(model, place, number, unfolded_loop, f"one trip in place of {words}")
    elif (domain, operator) == ("", "Scan"):
        yield from _unfolding(model, place, number, unfolded_scan, f"one step in place of {words}")
    elif (node.domain, operator) in called_functions(model):
        yield Change(inlined(model, [(node.domain, operator)]), f"its nodes in place of calls of {operator}")


def _unfolding(model: onnx.ModelProto, place: Place, number: int, unfold: Unfold, description: str) -> Iterator[Change]:
    made = copied(model)
    outputs = list(graph_at(made, place).node[number].output)
    if unfold(made, graph_at(made, place), number):
        forget_shapes_behind(made, place, outputs)
        drop_what_died(made, model)
        yield Change(made, description)
