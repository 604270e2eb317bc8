"""Where NaN and infinities begin: layers whose inputs are finite and whose outputs are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from biopsy import errors
from biopsy.layerwise.findings import NonFiniteOrigin
from biopsy.layerwise.non_finite import NonFinite, non_finite
from biopsy.model.constant_nodes import constant_of_node, is_constant_node
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import FLOATS

NonFiniteOf: TypeAlias = Callable[[str], NonFinite | None]
"""The NaN and infinities of a tensor; None if there are none, or if nobody knows."""


def non_finite_origins(
    index: ModelIndex, engine: str, of_input: NonFiniteOf, of_output: NonFiniteOf
) -> Iterator[NonFiniteOrigin]:
    """The origins in a run of ``engine``, in the order of the graph.

    A weight that is not finite is an origin by itself, and no layer that reads it is.
    """
    for node in index.nodes:
        if is_constant_node(index, node.number):
            continue
        outputs = ((name, count) for name in _names(index, node.writes) if (count := of_output(name)))
        first = next(outputs, None)
        if first is None or any(of_input(name) for name in _names(index, node.reads)):
            continue
        if not any(_is_non_finite_weight(index, tensor) for tensor in node.reads):
            tensor, count = first
            yield NonFiniteOrigin(
                engine=engine, number=node.number, label=node.label, tensor=tensor, nan=count.nan, inf=count.inf
            )


def _names(index: ModelIndex, tensors: tuple[int, ...]) -> list[str]:
    return [index.names[tensor] for tensor in tensors]


def _is_non_finite_weight(index: ModelIndex, tensor: int) -> bool:
    """Whether a weight or a Constant holds NaN or infinities; its values are read only now."""
    weight = index.weights.get(tensor)
    if weight is None:
        data = constant_of_node(index, tensor)
    elif weight.sparse or weight.kind.elem not in FLOATS:
        data = None
    else:
        data = bytes(index.buffer[weight.start : weight.end])
    if data is None:
        return False
    import onnx
    from onnx import numpy_helper

    try:
        values = numpy_helper.to_array(onnx.TensorProto.FromString(data), str(index.folder))
    except (ValueError, TypeError, OSError, onnx.checker.ValidationError, errors.BiopsyError):
        return False
    return non_finite([values]) is not None
