"""The types of tensors that a candidate no longer computes, and the constants that cut tensors are frozen to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import PLAIN
from biopsy.engines.worker import Worker
from biopsy.model import parts
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.infer import infer_value_infos, undeclared
from biopsy.model.nodes import constant_of_node
from biopsy.model.parts import raw_tensor
from biopsy.model.slice import Boundary, Subset, without_weights
from biopsy.model.tensor_type import BOOL, DTYPE_OF_ELEM, ELEM_OF_DTYPE, STRING, TensorType, ValueType
from biopsy.processes.cleanup import temporary_folder
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.tensors.results import Array, Feed

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
    """A serialized ValueInfoProto for each tensor at the border of a subset whose type is known.

    A tensor that no node computes has the type that the model declares.
    """
    index, written = subset.index, subset.written

    infos = {}
    for tensor in dict.fromkeys((*subset.cuts, *subset.sinks, *index.outputs, *index.inputs)):
        known = types.end if tensor in written else types.info
        infos[tensor] = known(tensor) if tensor in index.producer else index.infos.get(tensor)
    return {tensor: info for tensor, info in infos.items() if info is not None}


@dataclass(frozen=True, kw_only=True)
class Borders:
    """Borders by the default policy: cuts that look like shapes or depend on no input are frozen, others are fed.

    ``independent`` are the tensors that depend on no input.
    """

    index: ModelIndex
    types: CutTypes
    recorded: ValuesInMemory
    independent: frozenset[int]

    def boundary(self, subset: Subset, outputs: Sequence[int]) -> Boundary:
        """The border of a subset with these outputs. The whole model keeps everything that it declares."""
        infos = {} if subset.is_original else border_types(self.types, subset)
        for tensor in outputs:
            info = self.types.info(tensor)
            if tensor not in infos and info is not None:
                infos[tensor] = info
        constants = {} if subset.is_original else {cut: self._constant(cut) for cut in subset.cuts}
        frozen = {cut: span for cut, span in constants.items() if span is not None}
        return Boundary(infos=infos, frozen=frozen, outputs=list(outputs))

    def _constant(self, tensor: int) -> bytes | None:
        """The constant that a cut is frozen to; None if it is fed."""
        constant = constant_of_node(self.index, tensor)
        if constant is not None:
            return constant
        if tensor not in self.independent and not is_shape_like(self.types.tensor_type(tensor)):
            return None
        name = self.index.names[tensor]
        value = self.recorded.constant_value(name)
        return None if value is None else as_constant(name, value)


class CutTypes:
    """The type of any tensor of a model: declared, else inferred, else of a recorded value, else by its readers.

    Recording costs a run of the model, so ``recorded`` is asked last; first if ``recorded_first``
    (``--force-fallback-shape-inference``). ``opened`` are tensors whose declared sizes do not apply, since they follow
    from input shapes that have changed.
    """

    def __init__(
        self,
        index: ModelIndex,
        recorded: ValuesInMemory,
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
        """Run type inference now if it will be needed."""
        infos = self._index.infos
        unknown = next((t for t in self._index.producer if t not in infos or not _is_complete(infos[t])), None)
        if unknown is not None and not self._recorded_first:
            self._from_model(unknown)

    def info(self, tensor: int) -> bytes | None:
        """A serialized ValueInfoProto with the tensor's type; None if it is unknown."""
        if tensor not in self._known:
            self._known[tensor] = self._find(tensor)
        return self._known[tensor]

    def end(self, tensor: int) -> bytes | None:
        """A serialized ValueInfoProto for an output. Sizes known only from a recorded run are left open.

        Recorded sizes hold for some inputs only, but an output must have its declared size for all.
        """
        if tensor not in self._ends:
            recorded = self._from_recording(tensor) if tensor in self._opened else None
            self._ends[tensor] = recorded or self._find(tensor, sizes=False)
        return self._ends[tensor]

    def is_sufficient(self, tensor: int) -> bool:
        """Whether a tensor's type is known well enough for a border: with a rank, as onnx's checker requires.

        If the model's own inputs and outputs have no ranks, a type without one is enough.
        """
        if tensor not in self._sufficient:
            info = self.info(tensor)
            self._sufficient[tensor] = info is not None and (_is_ranked(info) or not self._has_ranks)
        return self._sufficient[tensor]

    @cached_property
    def _has_ranks(self) -> bool:
        index = self._index
        declared = (index.infos.get(tensor) for tensor in (*index.fed_inputs(), *index.outputs))
        return all(info is not None and _is_ranked(info) for info in declared)

    def tensor_type(self, tensor: int) -> TensorType | None:
        """The type if it is a plain tensor's; None for sequences, optionals and what is unknown."""
        if tensor in self._index.weights:
            return self._index.weights[tensor].kind
        info = self.info(tensor)
        return parts.tensor_type(info) if info is not None else None

    def agree(self, one: int, other: int) -> bool:
        """Whether two tensors are known to have the same type and shape.

        Equal symbols in declared shapes mean equal sizes. Exporters give a new symbol to every dimension that they do
        not know, so symbols that inference finds without the declared ones count as well.
        """
        first, second = self.tensor_type(one), self.tensor_type(other)
        if first is None or second is None or first.elem != second.elem:
            return False
        if first.shape == second.shape and first.shape is not None and None not in first.shape:
            return True
        names = (self._index.names[tensor] for tensor in (one, other))
        inferred = [self._inferred_anew.get(name) for name in names] if self._infer else [None]
        kinds = [info and parts.tensor_type(info) for info in inferred]
        shapes = [kind.shape if isinstance(kind, TensorType) else None for kind in kinds]
        return shapes[0] is not None and None not in shapes[0] and shapes[0] == shapes[-1]

    def elements(self, tensor: int) -> int:
        """The number of elements as far as the model tells, without a run; an open dimension counts as 1."""
        info = self._from_model(tensor)
        kind = parts.tensor_type(info) if info is not None else None
        shape = () if kind is None or kind.shape is None else kind.shape
        return math.prod(dim for dim in shape if isinstance(dim, int))

    def _find(self, tensor: int, *, sizes: bool = True) -> bytes | None:
        if self._recorded_first:
            return self._from_recording(tensor) or self._from_model(tensor)
        declared = self._from_model(tensor)
        if declared is not None and _is_ranked(declared):
            return declared
        name, recorded = self._index.names[tensor], self._from_recording(tensor, sizes=sizes)
        return recorded or self._inferred_behind.get(name) or self._inferred_from_readers.get(name) or declared

    def _from_model(self, tensor: int) -> bytes | None:
        """The declared type, its open dimensions filled in by inference if that knows more."""
        declared = self._index.infos.get(tensor)
        if declared is not None and _is_complete(declared):
            return declared
        inferred = self._inferred.get(self._index.names[tensor]) if self._infer else None
        typed = [info for info in (inferred, declared) if info is not None and parts.has_type(info)]
        return next((info for info in typed if _is_ranked(info)), typed[0] if typed else None)

    @cached_property
    def _inferred(self) -> dict[str, bytes]:
        return infer_value_infos(without_weights(self._index))

    @cached_property
    def _inferred_from_readers(self) -> dict[str, bytes]:
        """What inference finds also from the nodes that read tensors, and from declared outputs, which may be wrong."""
        return infer_value_infos(without_weights(self._index), backward=True) if self._infer else {}

    @cached_property
    def _inferred_anew(self) -> dict[str, bytes]:
        """What inference finds if the open shapes of inner tensors are not declared."""
        infos = self._index.infos
        left_open = [tensor for tensor in self._index.producer if tensor in infos and not _is_complete(infos[tensor])]
        return infer_value_infos(without_weights(undeclared(self._index, left_open))) if left_open else self._inferred

    @cached_property
    def _inferred_behind(self) -> dict[str, bytes]:
        """What inference finds from the ranks that only a recorded run tells: types behind nodes that could not run."""
        if not self._infer:
            return {}
        index = self._index
        known = ((tensor, self._from_model(tensor)) for tensor in index.producer)
        unknown = [tensor for tensor, info in known if info is None or not _is_ranked(info)]
        recorded = {t: info for t in unknown if (info := self._from_recording(t, sizes=False)) is not None}
        if not recorded:
            return {}
        with_ranks = replace(index, infos={**index.infos, **recorded}, listed=index.listed | recorded.keys())
        inferred = infer_value_infos(without_weights(with_ranks))
        return {name: info for name, info in inferred.items() if _is_ranked(info)}

    def _from_recording(self, tensor: int, *, sizes: bool = True) -> bytes | None:
        kind = self._recorded.tensor_type(self._index.names[tensor])
        if kind is not None and kind.shape is not None and not sizes:
            kind = TensorType(kind.elem, (None,) * len(kind.shape))
        return None if kind is None else parts.value_info(self._index.names[tensor], kind)


def _is_complete(info: bytes) -> bool:
    """Whether a type is complete: for a tensor, with every size."""
    kind = parts.tensor_type(info)
    return kind.is_static if kind is not None else parts.has_type(info)


def _is_ranked(info: bytes) -> bool:
    """Whether a type is given: for a tensor, with at least a rank."""
    kind = parts.tensor_type(info)
    return kind.shape is not None if kind is not None else parts.has_type(info)


def types_by_running(
    data: bytes, folder: Path, feed_for: Callable[[Mapping[str, ValueType | None]], Feed]
) -> dict[str, TensorType]:
    """The types of a model's inputs and outputs, seen in one run in a process of its own.

    ``folder`` holds the external weights; ``feed_for`` gives values for inputs of these types. Raises BiopsyError if
    the run fails.
    """
    from biopsy.tensors.files import write_feeds

    index = index_bytes(data, folder)
    feed = feed_for(index.fed_types())
    with temporary_folder("biopsy-") as scratch:
        given = scratch / "inputs.safetensors"
        write_feeds(given, [feed])
        try:
            with Worker(PLAIN[0], scratch) as worker:
                values = {**feed, **worker.run(ModelInput(data, folder.resolve()), given)[0]}
        except errors.EngineFailure as error:
            raise errors.BiopsyError(
                f"the model cannot be run once to see its shapes: {error.message}",
                next_steps=["leave out --force-fallback-shape-inference", *error.next_steps],
            ) from error
    return {
        name: TensorType(ELEM_OF_DTYPE.get(str(array.dtype), STRING), array.shape) for name, array in values.items()
    }
