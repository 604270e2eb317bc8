"""Where NaN and infinities begin: layers whose inputs are finite and whose outputs are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from biopsy import errors
from biopsy.layerwise.findings import Origin
from biopsy.layerwise.recorded import is_constant
from biopsy.layerwise.tensor_errors import Odd, odd
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import FLOATS
from biopsy.reduction.problem import constant_of_node

OddOf: TypeAlias = Callable[[str], Odd | None]
"""The NaN and infinities of a tensor; None if there are none, or if nobody knows."""


def origins(index: ModelIndex, engine: str, odd_input: OddOf, odd_output: OddOf) -> Iterator[Origin]:
    """The origins in a run of ``engine``, in the order of the graph.

    A weight that is not finite is an origin by itself, and no layer that reads it is.
    """
    for node in index.nodes:
        if is_constant(index, node.number):
            continue
        lost = next(((name, found) for name in _names(index, node.writes) if (found := odd_output(name))), None)
        if lost is None or any(odd_input(name) for name in _names(index, node.reads)):
            continue
        if not any(_is_odd_weight(index, tensor) for tensor in node.reads):
            yield Origin(engine, node.number, node.label, lost[0], lost[1].nan, lost[1].inf)


def _names(index: ModelIndex, tensors: tuple[int, ...]) -> list[str]:
    return [index.names[tensor] for tensor in tensors]


def _is_odd_weight(index: ModelIndex, tensor: int) -> bool:
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
    return odd([values]) is not None
