"""Upper bounds for sizes that a model computes from values: without one, nobody can tell how large a tensor gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import infer, value_info, walk
from biopsy.model.known_names import listed
from biopsy.model.tensor_type import TensorType
from biopsy.model.unbounded_shapes import unbounded_shapes
from biopsy.similar_names import did_you_mean

if TYPE_CHECKING:
    import onnx

_INT64 = 7
_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13})
"""Element types that Min takes, and a whole number can be."""


def set_upper_bounds(model: onnx.ModelProto, bounds: Mapping[str, int]) -> dict[str, int]:
    """Let no such tensor be more than its bound: a Min stands behind what computes it. Returns those that got one.

    ``bounds``: by name, "" for all that ``unbounded_shapes`` finds and that are not named.

    Raises UsageError for a name that no node of the model computes, or whose type Min does not take.
    """
    from onnx import helper

    computed = {name for node in model.graph.node for name in node.output if name}
    for name in bounds:
        if name and name not in computed:
            steps = [*did_you_mean(name, computed), f"what nodes compute here: {listed(sorted(computed))}"]
            raise errors.UsageError(
                f"--set-unbounded-dds-upper-bound: no node computes a tensor {name!r}", next_steps=steps
            )
    every = dict.fromkeys(unbounded_shapes(model), bounds[""]) if "" in bounds else {}
    chosen = every | {name: bound for name, bound in bounds.items() if name}
    types = infer.infer_types(model) if chosen else {}
    taken = walk.named(model.graph)
    for name, bound in chosen.items():
        kind = types.get(name, TensorType(_INT64, None))
        if kind.elem not in _NUMBERS:
            raise errors.UsageError(f"--set-unbounded-dds-upper-bound: tensor {name!r} holds no numbers")
        free = walk.free_name(f"{name}_copy", taken)
        shape = [1] if kind.shape else []
        limit = helper.make_tensor(walk.free_name(f"{name}_upper_bound", taken), kind.elem, shape, [bound])
        _insert(model, name, free, limit)
        if kind.shape is not None:
            model.graph.value_info.add().ParseFromString(value_info.value_info(free, kind))
    return chosen


def _insert(model: onnx.ModelProto, name: str, free: str, limit: onnx.TensorProto) -> None:
    from onnx import helper

    nodes = model.graph.node
    place = next(place for place, node in enumerate(nodes) if name in node.output)
    for number, output in enumerate(nodes[place].output):
        if output == name:
            nodes[place].output[number] = free
    model.graph.initializer.append(limit)
    nodes.insert(place + 1, helper.make_node("Min", [free, limit.name], [name]))
