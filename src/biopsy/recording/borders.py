"""The border of a set of nodes: the types that stand there, and what a cut tensor is frozen to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biopsy.model.constant_nodes import constant_of_node
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset
from biopsy.model.tensor_type import BOOL, DTYPE_OF_ELEM, ELEM_OF_DTYPE, TensorType
from biopsy.model.weight import raw_tensor
from biopsy.recording.cut_types import CutTypes
from biopsy.tensors.recorded_values import RecordedValues, constant_value
from biopsy.tensors.results import Array

_SHAPE_LIKE = frozenset({6, 7, BOOL})  # int32, int64, bool: what shapes, indices and masks are made of
_LARGEST_CONSTANT = 16 << 20  # bytes


def is_shape_like(kind: TensorType | None) -> bool:
    """Whether a tensor has a type that shapes, indices and masks have."""
    return kind is not None and kind.elem in _SHAPE_LIKE


def as_constant(name: str, value: Array) -> bytes | None:
    """A serialized TensorProto of a recorded value; None if it is too large, of strings, or narrower than a byte."""
    elem = ELEM_OF_DTYPE.get(value.dtype.name)
    if elem is None or value.dtype.kind in "OUS" or value.nbytes > _LARGEST_CONSTANT:
        return None
    if DTYPE_OF_ELEM[elem].endswith(("int4", "int2", "e2m1fn")):
        return None
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return raw_tensor(name, elem, value.shape, little.tobytes())


def border_types(types: CutTypes, subset: Subset) -> dict[int, bytes]:
    """A serialized ValueInfoProto for each tensor at the border of a subset that anybody can tell the type of.

    What no node computes has the type that the model declares.
    """
    index, written = subset.index, subset.written

    def info(tensor: int) -> bytes | None:
        if tensor not in index.producer:
            return index.infos.get(tensor)
        return types.end(tensor) if tensor in written else types.info(tensor)

    ends = dict.fromkeys((*subset.cuts, *subset.sinks, *index.outputs, *index.inputs))
    return {tensor: known for tensor in ends if (known := info(tensor)) is not None}


@dataclass(frozen=True, kw_only=True)
class Borders:
    """Borders by the default policy: what looks like a shape, or depends on no input, is frozen; the rest is fed.

    ``independent`` are the tensors that depend on no input.
    """

    index: ModelIndex
    types: CutTypes
    recorded: RecordedValues
    independent: frozenset[int]

    def boundary(self, subset: Subset, outputs: Sequence[int]) -> Boundary:
        """The border of a subset with these outputs. The whole model keeps all that it declares."""
        infos = {} if subset.is_whole else border_types(self.types, subset)
        for tensor in outputs:
            info = self.types.info(tensor)
            if tensor not in infos and info is not None:
                infos[tensor] = info
        constants = {} if subset.is_whole else {cut: self._constant(cut) for cut in subset.cuts}
        frozen = {cut: span for cut, span in constants.items() if span is not None}
        return Boundary(infos, frozen, outputs=list(outputs))

    def _constant(self, tensor: int) -> bytes | None:
        """What a cut is frozen to; None if it is fed."""
        written_out = constant_of_node(self.index, tensor)
        if written_out is not None:
            return written_out
        if tensor not in self.independent and not is_shape_like(self.types.tensor_type(tensor)):
            return None
        name = self.index.names[tensor]
        value = constant_value(self.recorded, name)
        return None if value is None else as_constant(name, value)
