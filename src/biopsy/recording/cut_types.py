"""The types of tensors that a candidate no longer computes, from the cheapest source that knows."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from biopsy.model import value_info
from biopsy.model.index import ModelIndex
from biopsy.model.infer import infer_value_infos
from biopsy.model.input_shapes import undeclared
from biopsy.model.slice import without_weights
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.recorded_values import RecordedValues


class CutTypes:
    """Type of any tensor of a model: declared, else inferred by onnx, else as a recorded value has it.

    Recording costs a run of the model, so ``recorded`` is asked last, or first if ``recorded_first``
    (``--force-fallback-shape-inference``). ``opened`` are tensors whose sizes follow from the inputs' shapes, which the
    model had declared for other shapes than those of now.
    """

    def __init__(
        self,
        index: ModelIndex,
        recorded: RecordedValues,
        *,
        infer: bool = True,
        recorded_first: bool = False,
        opened: frozenset[int] = frozenset(),
    ) -> None:
        self._index = index
        self._recorded = recorded
        self._infer = infer
        self._recorded_first = recorded_first
        self._opened = opened
        self._known: dict[int, bytes | None] = {}
        self._ends: dict[int, bytes | None] = {}
        self._sufficient: dict[int, bool] = {}

    def prepare(self) -> None:
        """Have types inferred now if any will have to be."""
        infos = self._index.infos
        unknown = next((t for t in self._index.producer if t not in infos or not _says_all(infos[t])), None)
        if unknown is not None and not self._recorded_first:
            self._from_model(unknown)

    def info(self, tensor: int) -> bytes | None:
        """A serialized ValueInfoProto with the tensor's type; None if nobody can tell it."""
        if tensor not in self._known:
            self._known[tensor] = self._find(tensor)
        return self._known[tensor]

    def end(self, tensor: int) -> bytes | None:
        """A serialized ValueInfoProto for an output. Sizes that only a recorded run tells are left open.

        They are those of some inputs, and an output of a declared size must have it for all.
        """
        if tensor not in self._ends:
            recorded = self._from_recording(tensor) if tensor in self._opened else None
            self._ends[tensor] = recorded or self._find(tensor, sizes=False)
        return self._ends[tensor]

    def is_told(self, tensor: int) -> bool:
        """Whether a tensor's type is known so well that it can stand at a border: with a rank, as onnx's checker wants.

        Where the model's own inputs and outputs have none, a type is enough.
        """
        if tensor not in self._sufficient:
            info = self.info(tensor)
            self._sufficient[tensor] = info is not None and (_says_enough(info) or not self._has_ranks)
        return self._sufficient[tensor]

    @cached_property
    def _has_ranks(self) -> bool:
        index = self._index
        declared = (index.infos.get(tensor) for tensor in (*index.fed_inputs(), *index.outputs))
        return all(info is not None and _says_enough(info) for info in declared)

    def tensor_type(self, tensor: int) -> TensorType | None:
        """The type if it is a plain tensor's; None for sequences, optionals and what is unknown."""
        if tensor in self._index.weights:
            return self._index.weights[tensor].kind
        info = self.info(tensor)
        return value_info.tensor_type(info) if info is not None else None

    def agree(self, one: int, other: int) -> bool:
        """Whether two tensors are known to have the same type and shape.

        Symbols that a model declares are taken at their word. Exporters give a new one to every dimension that they
        cannot tell, so those that inference finds without them count as well.
        """
        first, second = self.tensor_type(one), self.tensor_type(other)
        if first is None or second is None or first.elem != second.elem:
            return False
        return _same_shape(first, second) or (
            self._infer and _same_shape(self._inferred_alone(one), self._inferred_alone(other))
        )

    def elements(self, tensor: int) -> int:
        """Elements of a tensor as far as the model tells, without a run; a dimension left open counts as 1."""
        info = self._from_model(tensor)
        kind = value_info.tensor_type(info) if info is not None else None
        shape = () if kind is None or kind.shape is None else kind.shape
        return math.prod(dim for dim in shape if isinstance(dim, int))

    def _find(self, tensor: int, *, sizes: bool = True) -> bytes | None:
        if self._recorded_first:
            return self._from_recording(tensor) or self._from_model(tensor)
        found = self._from_model(tensor)
        if found is not None and _says_enough(found):
            return found
        recorded = self._from_recording(tensor, sizes=sizes)
        return recorded or self._inferred_behind.get(self._index.names[tensor]) or found

    def _from_model(self, tensor: int) -> bytes | None:
        """What the model declares, its open dimensions filled in by inference where that knows more."""
        declared = self._index.infos.get(tensor)
        if declared is not None and _says_all(declared):
            return declared
        inferred = self._inferred.get(self._index.names[tensor]) if self._infer else None
        typed = [info for info in (inferred, declared) if info is not None and value_info.has_type(info)]
        return next((info for info in typed if _says_enough(info)), typed[0] if typed else None)

    @cached_property
    def _inferred(self) -> dict[str, bytes]:
        return infer_value_infos(without_weights(self._index))

    @cached_property
    def _inferred_anew(self) -> dict[str, bytes]:
        """What inference finds where no open shape of an inner tensor is declared."""
        index = self._index
        left_open = [
            tensor for tensor in index.producer if tensor in index.infos and not _says_all(index.infos[tensor])
        ]
        return infer_value_infos(without_weights(undeclared(index, left_open))) if left_open else self._inferred

    @cached_property
    def _inferred_behind(self) -> dict[str, bytes]:
        """What inference finds once it knows the ranks that only a recorded run tells: of what nothing could run."""
        if not self._infer:
            return {}
        index = self._index
        known = ((tensor, self._from_model(tensor)) for tensor in index.producer)
        untold = [tensor for tensor, info in known if info is None or not _says_enough(info)]
        recorded = {t: info for t in untold if (info := self._from_recording(t, sizes=False)) is not None}
        if not recorded:
            return {}
        with_ranks = replace(index, infos={**index.infos, **recorded}, listed=index.listed | recorded.keys())
        found = infer_value_infos(without_weights(with_ranks))
        return {name: info for name, info in found.items() if _says_enough(info)}

    def _inferred_alone(self, tensor: int) -> TensorType | None:
        found = self._inferred_anew.get(self._index.names[tensor])
        return None if found is None else value_info.tensor_type(found)

    def _from_recording(self, tensor: int, *, sizes: bool = True) -> bytes | None:
        kind = self._recorded.tensor_type(self._index.names[tensor])
        if kind is not None and kind.shape is not None and not sizes:
            kind = TensorType(kind.elem, (None,) * len(kind.shape))
        return None if kind is None else value_info.value_info(self._index.names[tensor], kind)


def _same_shape(one: TensorType | None, other: TensorType | None) -> bool:
    if one is None or other is None or one.shape is None or None in one.shape:
        return False
    return one.shape == other.shape


def _says_all(info: bytes) -> bool:
    """Whether a type is given, with every size if it is a tensor's."""
    kind = value_info.tensor_type(info)
    return kind.is_static if kind is not None else value_info.has_type(info)


def _says_enough(info: bytes) -> bool:
    """Whether a type is given, with at least a rank if it is a tensor's."""
    kind = value_info.tensor_type(info)
    return kind.shape is not None if kind is not None else value_info.has_type(info)
