"""What exporters noted of nodes: stack traces with paths and lines of code, names of modules and of their classes.

They lead back to the code that a node comes from, so every other pass leaves them alone. They also tell of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx


def exporter_notes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove metadata and documentation of all nodes at once; only if that does not reproduce, by halves."""
    noted = [number for number, node in enumerate(walk.nodes(model)) if node.metadata_props or node.doc_string]

    def propose(kept: Sequence[int]) -> Change:
        made, gone = copied(model), set(noted) - set(kept)
        for number, node in enumerate(walk.nodes(made)):
            if number in gone:
                node.ClearField("metadata_props")
                node.ClearField("doc_string")
        return Change(made, "without what an exporter noted of nodes")

    yield from minimize_subset(noted, propose)
