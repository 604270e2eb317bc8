"""Tensors whose size depends on data and has no bound: what TensorRT asks a person to bound by a Min.

Only models whose constants are folded and whose shapes are inferred tell much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy.model import infer, value_info, walk
from biopsy.model.topology import sort_nodes

if TYPE_CHECKING:
    import onnx

_SIZED_BY = {"Range": 1, "Pad": 1, "Resize": 3, "Tile": 1, "Expand": 1}
"""Operators whose output is as large as the value of an input says -> the place of that input."""


def unbounded_shapes(model: onnx.ModelProto) -> list[str]:
    """Names of tensors of the main graph whose values set a size without a bound, in topological order.

    A size is bounded if its dimension is a number or has a name that an input or a tensor before has, if it is a
    constant, or if a Min computes it.
    """
    light = infer.without_weights(model)
    nodes = light.graph.node
    sort_nodes(nodes)
    infos = infer.infer_value_infos(light.SerializeToString())
    known = {dim for value in model.graph.input for dim in _names(infos, value.name) or ()}
    constants = {weight.name for weight in model.graph.initializer} | {
        name for node in nodes if node.op_type == "Constant" for name in node.output
    }
    writers = {name: node.op_type for node in nodes for name in node.output}
    found: dict[str, None] = {}
    for node in nodes:
        new = False
        for output in filter(None, node.output):
            names = _names(infos, output)
            new = new or names is None or not known.issuperset(names)
            known.update(names or ())
        place = _SIZED_BY.get(node.op_type)
        if not new or place is None or walk.operator(node)[0] or place >= len(node.input):
            continue
        sizes = node.input[place]
        if sizes not in constants and writers.get(sizes, "Min") != "Min":
            found[sizes] = None
    return list(found)


def _names(infos: dict[str, bytes], name: str) -> set[str] | None:
    """The names of a tensor's open dimensions; None if one has no name, or nobody knows the shape."""
    kind = value_info.tensor_type(infos[name]) if name in infos else None
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return {dim for dim in kind.shape if isinstance(dim, str)}
