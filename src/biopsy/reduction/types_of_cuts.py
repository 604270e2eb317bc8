"""The types of tensors that a candidate no longer computes, from the cheapest source that knows."""

from __future__ import annotations

import math
from collections.abc import Callable

from biopsy.model import value_info
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.model.weight import Weight

_INFERENCE_NEEDS = 8192
"""Bytes: a larger initializer is no shape, and shape inference is not handed its values."""


class CutTypes:
    """Type of any tensor of a model: declared, else inferred by onnx, else as a recorded value has it.

    ``recorded_type`` gives the type of a tensor as it was recorded, or None; recording costs a run of the model, so it
    is asked last, or first if ``recorded_first`` (``--force-fallback-shape-inference``).
    """

    def __init__(
        self,
        index: ModelIndex,
        recorded_type: Callable[[int], TensorType | None],
        *,
        infer: bool = True,
        recorded_first: bool = False,
    ) -> None:
        self._index = index
        self._recorded_type = recorded_type
        self._infer = infer
        self._recorded_first = recorded_first
        self._inferred: dict[str, bytes] | None = None
        self._known: dict[int, bytes | None] = {}

    def prepare(self) -> None:
        """Have types inferred now if any will have to be."""
        unknown = next((tensor for tensor in self._index.producer if tensor not in self._index.infos), None)
        if unknown is not None and not self._recorded_first:
            self._from_model(unknown)

    def info(self, tensor: int) -> bytes | None:
        """A serialized ValueInfoProto with the tensor's type; None if nobody can tell it."""
        if tensor not in self._known:
            self._known[tensor] = self._find(tensor)
        return self._known[tensor]

    def tensor_type(self, tensor: int) -> TensorType | None:
        """The type if it is a plain tensor's; None for sequences, optionals and what is unknown."""
        if tensor in self._index.weights:
            return self._index.weights[tensor].kind
        info = self.info(tensor)
        return value_info.tensor_type(info) if info is not None else None

    def elements(self, tensor: int) -> int:
        """Elements of a tensor as far as the model tells, without a run; a dimension left open counts as 1."""
        info = self._from_model(tensor)
        kind = value_info.tensor_type(info) if info is not None else None
        shape = () if kind is None or kind.shape is None else kind.shape
        return math.prod(dim for dim in shape if isinstance(dim, int))

    def _find(self, tensor: int) -> bytes | None:
        if self._recorded_first:
            return self._from_recording(tensor) or self._from_model(tensor)
        found = self._from_model(tensor)
        if found is not None and _says_enough(found):
            return found
        return self._from_recording(tensor) or found

    def _from_model(self, tensor: int) -> bytes | None:
        declared = self._index.infos.get(tensor)
        if declared is not None and _says_enough(declared):
            return declared
        if not self._infer:
            return declared if declared is not None and value_info.has_type(declared) else None
        if self._inferred is None:
            from biopsy.model.infer import infer_value_infos

            self._inferred = infer_value_infos(without_weights(self._index))
        inferred = self._inferred.get(self._index.names[tensor])
        if inferred is not None and value_info.has_type(inferred):
            return inferred
        return declared if declared is not None and value_info.has_type(declared) else None

    def _from_recording(self, tensor: int) -> bytes | None:
        kind = self._recorded_type(tensor)
        return None if kind is None else value_info.value_info(self._index.names[tensor], kind)


def _says_enough(info: bytes) -> bool:
    """Whether a type is given, with at least a rank if it is a tensor's."""
    kind = value_info.tensor_type(info)
    return kind.shape is not None if kind is not None else value_info.has_type(info)


def without_weights(index: ModelIndex) -> bytes:
    """The whole model with each large initializer as an input of the same type: what shape inference needs to see.

    Inference on it takes a millisecond where the model with its weights takes half a second (ResNet-50).
    """
    large = {tensor: weight for tensor, weight in index.weights.items() if _is_large(weight)}
    infos = {tensor: value_info.value_info(weight.name, weight.kind) for tensor, weight in large.items()}
    inputs = [*index.inputs, *(tensor for tensor in large if tensor not in index.inputs)]
    whole = Subset(index, tuple(range(len(index.nodes))))
    return candidate_bytes(whole, Boundary(infos, {}, inputs=inputs, dropped=frozenset(large)))


def _is_large(weight: Weight) -> bool:
    return weight.external is not None or weight.end - weight.start > _INFERENCE_NEEDS
