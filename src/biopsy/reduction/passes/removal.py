"""The search that passes share which leave parts of nodes out: all that can go at once, then by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.shapes import is_consistent
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

Item = TypeVar("Item")


def leaving_out(
    model: onnx.ModelProto,
    items: Sequence[Item],
    without: Callable[[onnx.ModelProto, Sequence[Item]], onnx.ModelProto],
    what: str,
) -> ChangeSearch:
    """Propose ``without(model, some of items)``; what shape inference refutes by itself is never proposed.

    A model that inference refutes as it is tells nothing, and then nothing is held back.
    """
    able = list(items)
    if is_consistent(model):
        able = [item for item in able if is_consistent(without(model, [item]))]

    def propose(kept: Sequence[Item]) -> Change:
        gone = [item for item in able if item not in kept]
        return Change(without(model, gone), f"without {len(gone)} of {len(able)} {what}")

    yield from minimize_subset(able, propose)
