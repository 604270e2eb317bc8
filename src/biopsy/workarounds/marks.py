"""Inner tensors marked as outputs: an engine has to compute them, so it cannot fuse the nodes around them into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.model import infer
from biopsy.reduction.passes.editing import copied, described
from biopsy.workarounds.patch import Patch

if TYPE_CHECKING:
    import onnx


def marks(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """One patch for each plain tensor that these nodes of the main graph write and that is no output yet.

    Tensors whose element type and rank cannot be told are left out: an output has to say them.
    """
    types = infer.infer_types(model)
    outputs = {info.name for info in model.graph.output}
    return [
        _mark(model.graph.node[place], place, name)
        for place in nodes
        for name in model.graph.node[place].output
        if name and name not in outputs and name in types and types[name].shape is not None
    ]


def _mark(node: onnx.NodeProto, place: int, name: str) -> Patch:
    return Patch(
        kind="mark",
        name="output-mark",
        text=f"{described(node)}: its result {name!r} marked as an output",
        cost="one more output of the model, and the fusions that it breaks",
        exact=True,
        nodes=(place,),
        change=lambda model: marked(model, name),
    )


def marked(model: onnx.ModelProto, name: str) -> onnx.ModelProto | None:
    """A copy of a model with one more output, the last; None if no node computes it, or its type cannot be told."""
    from onnx import helper

    kind = infer.infer_types(model).get(name)
    computed = any(name in node.output for node in model.graph.node)
    if kind is None or kind.shape is None or not computed or any(info.name == name for info in model.graph.output):
        return None
    made = copied(model)
    made.graph.output.append(helper.make_tensor_value_info(name, kind.elem, list(kind.shape)))
    return made
