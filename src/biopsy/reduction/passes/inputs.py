"""Inputs of the model that no node reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied, keep_only, read_in
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx


def inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop the inputs that nothing reads, all at once, then by halves; an initializer of that name goes too."""
    read = read_in(model.graph)
    unused = [info.name for info in model.graph.input if info.name not in read]

    def propose(kept: Sequence[str]) -> Change:
        gone = set(unused).difference(kept)
        made = copied(model)
        keep_only(made.graph.input, lambda info: info.name not in gone)
        keep_only(made.graph.initializer, lambda weight: weight.name not in gone)
        keep_only(made.graph.sparse_initializer, lambda weight: weight.values.name not in gone)
        return Change(made, f"without {len(gone)} of {len(model.graph.input)} inputs")

    yield from minimize_subset(unused, propose)
