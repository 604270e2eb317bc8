"""Fewer outputs of If, Loop and Scan, and fewer nodes inside their bodies."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.body_nodes import BodyNodes
from biopsy.reduction.passes.body_outputs import Output, unread_outputs, without_outputs
from biopsy.reduction.passes.editing import copied, described, drop_what_died, graph_at, places
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

Step: TypeAlias = "Generator[Iterable[Change], onnx.ModelProto | None, onnx.ModelProto]"


def bodies(model: onnx.ModelProto) -> ChangeSearch:
    """Drop outputs that nothing reads, with the values loops carry for them; then reduce in each body, inner first.

    Last, drop the nodes around bodies that only served what is gone.
    """
    before = model
    model = yield from _fewer_outputs(model)
    for place in reversed(places(model)):
        if place:
            model = yield from _fewer_nodes(BodyNodes(model, place))
            model = yield from _around_nodes(BodyNodes(model, place))
    made = copied(model)
    drop_what_died(made, before)
    if made != model:
        yield [Change(made, "without the nodes that only served bodies")]


def _fewer_outputs(model: onnx.ModelProto) -> Step:
    unread = unread_outputs(model)

    def propose(kept: Sequence[Output]) -> Change:
        gone = [output for output in unread if output not in kept]
        return Change(without_outputs(model, gone), f"without {len(gone)} of {len(unread)} unread outputs of bodies")

    kept = yield from minimize_subset(unread, propose)
    return propose(kept).model if len(kept) < len(unread) else model


def _fewer_nodes(body: BodyNodes) -> Step:
    """Cut as many nodes of a body as possible at once."""

    def propose(kept: Sequence[int]) -> Change:
        return Change(body.with_only(kept), f"{len(kept)} of {len(body.nodes)} nodes of {body.name}")

    kept = yield from minimize_subset(body.nodes, propose)
    return propose(kept).model if len(kept) < len(body.nodes) else body.model


def _around_nodes(body: BodyNodes) -> Step:
    """Bypass, or replace by a constant, what is left of a body, one node at a time, from its end."""
    for position in reversed(range(len(body.nodes))):
        node = body.nodes[position]
        words = f"{described(graph_at(body.model, body.place).node[node])} in {body.name}"
        changes = [Change(made, f"around {words}") for made in body.around(node)]
        constant = body.as_constant(node)
        if constant is not None:
            changes.append(Change(constant, f"a constant in place of {words}"))
        answer = (yield changes) if changes else None
        if answer is not None:
            body = BodyNodes(answer, body.place)  # the nodes before this one keep their order
    return body.model
