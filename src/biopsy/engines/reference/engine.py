"""The reference evaluator of the package onnx: slow, and as close to the standard's text as there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Capabilities, Engine, ModelInput, Option, Session
from biopsy.engines.built_model import BuiltModel
from biopsy.engines.option import switch
from biopsy.engines.reference.stacked_outputs import stack_outputs
from biopsy.engines.reference.weights_in_files import taken_out
from biopsy.model import external, load
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, OptionalType, TensorType, ValueType
from biopsy.tensors.dtypes import text
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.structured_values import all_flattened, structured

if TYPE_CHECKING:
    import onnx


class Reference(Engine):
    """onnx.reference.ReferenceEvaluator."""

    name = "reference"
    summary = "reference evaluator of onnx"
    package = "onnx"
    distributions = ("onnx", "onnx-weekly")
    capabilities = Capabilities(precision_used=True, own_memory=1_500_000_000)
    forks_warm = True
    options_declared = (
        Option(
            "float64", "compute everything in float64, whatever the model declares", False, parse=switch, harmless=True
        ),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package onnx."""
        try:
            return str(cls.imports.module("onnx").__version__)
        except ImportError as error:
            raise errors.EngineMissing(f"onnx cannot be imported: {error}", next_steps=["pip install onnx"]) from error

    def _require_types(self, index: ModelIndex) -> None:
        """Raise EngineFailure for types that an older release computes as if their bits were whole numbers."""
        elems = _types_of_ml_dtypes(index)
        if not elems:
            return
        helper = self.imports.module("onnx.helper")
        try:
            known = {elem for elem in elems if helper.tensor_dtype_to_np_dtype(elem).name == DTYPE_OF_ELEM[elem]}
        except (AttributeError, KeyError):
            known = set()
        if elems - known:
            types = ", ".join(DTYPE_OF_ELEM[elem] for elem in sorted(elems - known))
            raise errors.EngineFailure(
                f"onnx {self.version()} computes with the bits of {types}: not tried",
                engine=self.name,
                stage="load",
                kind="UnsupportedType",
            )

    def _evaluator(self, proto: onnx.ModelProto) -> Any:
        """The evaluator of a model, which may be that of another release."""
        wide = self.options["float64"]
        if self.imports.is_here:
            return _evaluator_class(wide)(proto)
        if wide:
            raise errors.UsageError("engine 'reference': float64 is not there with another release of onnx")
        try:
            evaluator = self.imports.module("onnx.reference").ReferenceEvaluator
        except ImportError as error:
            raise errors.EngineMissing(f"onnx {self.version()} has no reference evaluator: {error}") from error
        return evaluator(self.imports.module("onnx").load_model_from_string(proto.SerializeToString()))

    def build(self, model: ModelInput) -> Session:
        """Load the model, with its external data. Raises ModelError if that is missing or unsafe."""
        self.version()
        proto = load.parse(model.data, model.path)
        index = index_bytes(model.data, model.folder)
        weights = taken_out(proto, model.folder) if self.imports.is_here else {}
        external.load_into(proto, model.folder)
        wide = self.options["float64"]
        if not self.imports.is_here:
            self._require_types(index)
        try:
            _give_loops_a_condition(proto)
            stack_outputs(proto)
            evaluator = self._evaluator(proto)
            evaluator.rt_inits_.update(weights)
        except (errors.UsageError, errors.EngineMissing):
            raise
        except Exception as error:
            raise _failure(error, "load") from error
        return ReferenceSession(evaluator, index, _remarks(proto) if wide else None)


def _types_of_ml_dtypes(index: ModelIndex) -> set[int]:
    """The element types in a model that NumPy lacks, as far as the model tells."""
    found = {weight.kind.elem for weight in index.weights.values()}
    found |= {kind.elem for kind in map(index.tensor_type, index.infos) if kind is not None}
    spans = [index.node_spans[node.number] for node in index.nodes if node.op_type == "Cast"]
    found |= {elem for elem in _NOT_OF_NUMPY if any(bytes([0x18, elem]) in span for span in spans)}
    return found & _NOT_OF_NUMPY


_NOT_OF_NUMPY = frozenset(ELEM_OF_DTYPE.values()) - frozenset(range(1, 16))


def _evaluator_class(wide: bool) -> Any:
    if wide:
        from biopsy.engines.reference.wide_evaluator import evaluator_class

        return evaluator_class()
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator


def _give_loops_a_condition(proto: onnx.ModelProto) -> None:
    """Write out the condition of a Loop that has none: that means true, but the evaluator of onnx takes it as false."""
    from biopsy.model import walk

    places: list[onnx.GraphProto | onnx.FunctionProto] = [*walk.graphs(proto), *proto.functions]
    for place in places:
        number = 0
        while number < len(place.node):
            node = place.node[number]
            if node.op_type == "Loop" and not any(node.input[1:2]):
                name = f"biopsy/always/{next(filter(None, node.output), number)}"
                place.node.insert(number, _true(name))
                node = place.node[number := number + 1]
                node.input.extend([""] * (2 - len(node.input)))
                node.input[1] = name
            number += 1


def _true(name: str) -> onnx.NodeProto:
    from onnx import TensorProto, helper

    return helper.make_node("Constant", [], [name], value=helper.make_tensor("", TensorProto.BOOL, (), [True]))


def _remarks(proto: onnx.ModelProto) -> list[str]:
    from biopsy.engines.reference.wide_evaluator import single_inside
    from biopsy.model import walk

    found = single_inside(list(walk.nodes(proto)))
    return [f"onnx computes {', '.join(found)} in float32 inside, in spite of float64"] if found else []


class ReferenceSession(BuiltModel):
    """A model that the reference evaluator has loaded; ``wide``: remarks on how, if it computes in float64."""

    gives_new_arrays = True

    def __init__(self, evaluator: Any, index: ModelIndex, wide: Sequence[str] | None = None) -> None:
        self._evaluator = evaluator
        self._is_wide = wide is not None
        self._types = {index.names[tensor]: index.value_type(tensor) for tensor in index.outputs}
        inputs = index.fed_types()
        super().__init__(inputs, tuple(self._types), tuple(wide or ()))

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once. In float64, floating-point outputs are float64 too, whatever the model declares."""
        from biopsy.engines.reference.wide_evaluator import widened

        if self._is_wide:
            feed = {name: widened(value) for name, value in feed.items()}
        try:
            with np.errstate(all="ignore"):
                values = self._evaluator.run(None, {n: structured(feed, n, kind) for n, kind in self._inputs.items()})
        except Exception as error:
            raise _failure(error, "run") from error
        if self._is_wide:
            values = map(widened, values)  # an output may be a weight as it is
        values = map(_unwrapped, values, self._types.values())
        return all_flattened(self._types, values, _readable)


def _unwrapped(value: Any, kind: ValueType | None) -> Any:
    """The value of an optional: the evaluator of onnx puts it into a list where an operator has made it one."""
    if not isinstance(kind, OptionalType) or not isinstance(value, list) or len(value) != 1:
        return value
    wrapped = value[0] is None or isinstance(kind.item, TensorType) or isinstance(value[0], list)
    return value[0] if wrapped else value


def _readable(value: Array | np.generic[Any]) -> Array:
    array = np.asarray(value)
    return text(array) if array.dtype == object else array


def _failure(error: Exception, stage: errors.Stage) -> errors.BiopsyError:
    if isinstance(error, UnicodeError):
        return errors.CannotCompare(f"strings that are no UTF-8 cannot be read by the evaluator of onnx: {error}")
    message = str(error).strip() or type(error).__name__
    return errors.EngineFailure(message, engine=Reference.name, stage=stage, kind=type(error).__name__)
