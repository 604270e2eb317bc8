"""The reference evaluator of the package onnx: slow, and closest to the text of the standard."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.engines.base import BuiltModel, Capabilities, Engine, ModelInput, Option, Session, switch
from biopsy.engines.reference_corrected import corrected_evaluator, misread
from biopsy.engines.reference_float64 import ROUNDINGS, evaluator_class, single_inside, widened
from biopsy.engines.reference_moved import SEEDS, Movement, digits_of
from biopsy.engines.reference_undefined import UNDEFINED
from biopsy.model import external, load, walk
from biopsy.model.external import is_external, span_of
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import BITS, DTYPE_OF_ELEM, ELEM_OF_DTYPE, OptionalType, TensorType
from biopsy.processes.reading import open_plain
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import all_flattened, structured
from biopsy.text import first_of


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
        Option(
            "rounded",
            "with float64, round what each node reads, its results, or both to a narrower type, or only the results of "
            "Casts to float16 and bfloat16",
            choices=ROUNDINGS,
        ),
        Option(
            "undefined",
            "with float64, refuse to run where ONNX defines no result (an integer divided by 0, a Cast out of range, "
            "an index out of bounds), or give a number there",
            choices=UNDEFINED,
        ),
        Option(
            "moved",
            "with float64, move each result that the narrowest type of the inputs (or that of rounded) cannot hold "
            "exactly by ten roundings, in random directions that this number chooses",
            choices=SEEDS,
        ),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package onnx."""
        try:
            return str(cls.imports.module("onnx").__version__)
        except ImportError as error:
            raise errors.EngineMissing(f"onnx cannot be imported: {error}", next_steps=["pip install onnx"]) from error

    @property
    def keeps_types(self) -> bool:
        """Whether it computes in the types of the model."""
        return not self.options["float64"]

    def _require_types(self, index: ModelIndex) -> None:
        """Raise EngineFailure if the model has types that an old release would compute with as whole numbers."""
        elems = {weight.kind.elem for weight in index.weights.values()}
        elems |= {kind.elem for kind in map(index.tensor_type, index.infos) if kind is not None}
        spans = [index.node_spans[node.number] for node in index.nodes if node.op_type == "Cast"]
        elems |= {elem for elem in _NOT_IN_NUMPY if any(bytes([0x18, elem]) in span for span in spans)}
        elems &= _NOT_IN_NUMPY
        if not elems:
            return
        helper = self.imports.module("onnx.helper")
        try:
            known = {elem for elem in elems if helper.tensor_dtype_to_np_dtype(elem).name == DTYPE_OF_ELEM[elem]}
        except (AttributeError, KeyError):
            known = set()
        if elems - known:
            types = ", ".join(DTYPE_OF_ELEM[elem] for elem in sorted(elems - known))
            message = f"not tried: onnx {self.version()} computes with the bits of {types} as if they were integers"
            raise self.failure(message, "load", "UnsupportedType")

    def _evaluator(self, proto: onnx.ModelProto, index: ModelIndex) -> Any:
        """The evaluator of a model, perhaps of another release."""
        wide, rounded, seed = (self.options[name] for name in ("float64", "rounded", "moved"))
        for name in () if wide else ("rounded", "undefined", "moved"):
            if choice := self.options[name]:
                raise errors.UsageError(
                    f"engine 'reference': {name} needs float64", next_steps=[f"reference:float64,{name}={choice}"]
                )
        if self.imports.is_here:
            if wide and seed:
                dtypes = [kind.dtype for kind in index.fed_types().values() if isinstance(kind, TensorType)]
                dtypes = [rounded.partition("-")[0]] if rounded else dtypes
                movement = Movement(digits_of(dtypes), int(seed))
                return evaluator_class(undefined=self.options["undefined"], movement=movement)(proto)
            if wide:
                return evaluator_class(rounded, self.options["undefined"])(proto)
            return corrected_evaluator()(proto)
        if wide:
            raise errors.UsageError("engine 'reference': float64 does not work with another release of onnx")
        try:
            evaluator = self.imports.module("onnx.reference").ReferenceEvaluator
        except ImportError as error:
            raise errors.EngineMissing(f"onnx {self.version()} has no reference evaluator: {error}") from error
        return evaluator(self.imports.module("onnx").load_model_from_string(proto.SerializeToString()))

    def build(self, model: ModelInput) -> Session:
        """Load the model with its external data. Raises ModelError if that is missing or unsafe."""
        self.version()
        proto = load.parse(model.data, model.path)
        index = index_bytes(model.data, model.folder)
        weights = mapped_weights(proto, model.folder) if self.imports.is_here else {}
        external.load_into(proto, model.folder)
        if not self.imports.is_here:
            self._require_types(index)
        elif wrong := [text for node in walk.nodes(proto) for text in misread(node)]:
            message = f"not tried: onnx {self.version()} does not compute {first_of(wrong, 3)} as ONNX defines it"
            raise self.failure(message, "load", "NotSupported")
        try:
            name_conditions(proto)
            stack_outputs(proto)
            evaluator = self._evaluator(proto, index)
            evaluator.rt_inits_.update(weights)
        except (errors.UsageError, errors.EngineMissing):
            raise
        except Exception as error:
            raise _failure(error, "load") from error
        remarks = None
        if self.options["float64"]:
            operators = single_inside(list(walk.nodes(proto)))
            remark = f"onnx computes {', '.join(operators)} in float32 inside, in spite of float64"
            remarks = [remark] if operators else []
        return ReferenceSession(evaluator, index, remarks)


_NOT_IN_NUMPY = frozenset(ELEM_OF_DTYPE.values()) - frozenset(range(1, 16))


class ReferenceSession(BuiltModel):
    """A model that the reference evaluator has loaded; ``wide_remarks`` is None unless it computes in float64."""

    gives_new_arrays = True

    def __init__(self, evaluator: Any, index: ModelIndex, wide_remarks: Sequence[str] | None = None) -> None:
        self._evaluator = evaluator
        self._is_wide = wide_remarks is not None
        self._types = {index.names[tensor]: index.value_type(tensor) for tensor in index.outputs}
        super().__init__(index.fed_types(), tuple(self._types), tuple(wide_remarks or ()))

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once. In float64, floating-point outputs are float64 too, whatever the model declares."""
        if self._is_wide:
            feed = {name: widened(value) for name, value in feed.items()}
        try:
            with np.errstate(all="ignore"):
                values = self._evaluator.run(None, {n: structured(feed, n, kind) for n, kind in self._inputs.items()})
        except Exception as error:
            raise _failure(error, "run") from error
        outputs = []
        for value, kind in zip(values, self._types.values(), strict=True):
            # The evaluator wraps an optional in a list if an operator made it.
            if isinstance(kind, OptionalType) and isinstance(value, list) and len(value) == 1:
                is_wrapped = value[0] is None or isinstance(kind.item, TensorType) or isinstance(value[0], list)
                value = value[0] if is_wrapped else value  # noqa: PLW2901
            outputs.append(widened(value) if self._is_wide else value)  # an output may be a weight, which is narrow
        return all_flattened(self._types, outputs)


def _failure(error: Exception, stage: errors.Stage) -> errors.BiopsyError:
    if isinstance(error, UnicodeError):
        return errors.CannotCompare(f"strings that are not UTF-8 cannot be read by the evaluator of onnx: {error}")
    kind = type(error).__name__
    return Reference.failure(str(error).strip() or kind, stage, kind)


Place: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

_AXES_ARE_AN_INPUT = 13
"""The first opset in which Squeeze and Unsqueeze read their axes from an input."""


def name_conditions(proto: onnx.ModelProto) -> None:
    """Give each Loop without a condition one that is always true: the evaluator requires it."""
    places: list[Place] = [*walk.graphs(proto), *proto.functions]
    for place in places:
        number = 0
        while number < len(place.node):
            node = place.node[number]
            if node.op_type == "Loop" and not any(node.input[1:2]):
                name = f"biopsy/always/{next(filter(None, node.output), number)}"
                value = onnx.helper.make_tensor("", onnx.TensorProto.BOOL, (), [True])
                place.node.insert(number, onnx.helper.make_node("Constant", [], [name], value=value))
                node = place.node[number := number + 1]
                node.input.extend([""] * (2 - len(node.input)))
                node.input[1] = name
            number += 1


def stack_outputs(proto: onnx.ModelProto) -> None:
    """Change every Loop of a model in place, so that its scan outputs are stacked along a new axis, as in the standard.

    The evaluator joins them along their first axis instead: scalars become [n, 1], matrices [n * a, b]. So each gets
    two more axes inside the body, is joined along the first one, and loses the second one after the Loop.
    """
    roots: list[tuple[Place, Sequence[onnx.OperatorSetIdProto]]] = [(proto.graph, proto.opset_import)]
    roots += [(function, function.opset_import) for function in proto.functions]
    for graph, opsets in roots:
        version = next((opset.version for opset in opsets if opset.domain in {"", "ai.onnx"}), 1)
        for place in (graph, *walk.graphs_within(graph.node)):
            number = 0
            while number < len(place.node):
                node = place.node[number]
                number += 1
                if node.op_type == "Loop" and walk.operator(node)[0] == "":
                    for added in _stacked(node, version):
                        place.node.insert(number, added)
                        number += 1


def _stacked(node: onnx.NodeProto, version: int) -> list[onnx.NodeProto]:
    """Change the body of one Loop; returns the nodes that must follow it. A Loop without a body is left alone."""
    bodies = list(walk.bodies(node))
    if len(bodies) != 1:
        return []
    (body,) = bodies
    carried = max(len(node.input) - 2, 0)
    following = []
    for place in range(carried, len(body.output) - 1):
        inner = body.output[place + 1]
        unsqueezed = f"biopsy/stacked/{inner.name}/{place}"
        body.node.extend(_reshaping("Unsqueeze", inner.name, unsqueezed, [0, 1], version))
        inner.name = unsqueezed
        inner.ClearField("type")
        if place < len(node.output) and node.output[place]:
            outer = node.output[place]
            node.output[place] = f"biopsy/stacked/{outer}"
            following += _reshaping("Squeeze", node.output[place], outer, [1], version)
    return following


def _reshaping(operator: str, source: str, result: str, axes: list[int], version: int) -> list[onnx.NodeProto]:
    if version < _AXES_ARE_AN_INPUT:
        return [onnx.helper.make_node(operator, [source], [result], axes=axes)]
    value = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [len(axes)], axes)
    name = f"{result}/axes"
    constant = onnx.helper.make_node("Constant", [], [name], value=value)
    return [constant, onnx.helper.make_node(operator, [source, name], [result])]


_MAPPED_ELEMS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16})
"""Element types whose raw bytes are those of NumPy's type, or of ml_dtypes' bfloat16."""


def mapped_weights(model: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    """Remove external weights from the main graph; returns them by name, as arrays that map their files.

    Mapped weights are not copied. In the model, they would be in memory three times, and protobuf cannot write 2 GB.
    Writing to the arrays does not change the files. Weights of subgraphs, and of types that are packed or that NumPy
    lacks, stay in the model.

    Raises ModelError if a file is missing, unsafe or too short; the model is then unchanged.
    """
    if sys.byteorder != "little":
        return {}
    weights: dict[str, Array] = {}
    files: dict[Path, mmap.mmap] = {}
    for tensor in model.graph.initializer:
        elem = tensor.data_type
        if not (is_external(tensor) and tensor.name) or elem not in _MAPPED_ELEMS or 0 in tensor.dims:
            continue
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem))
        if 8 * dtype.itemsize != BITS[elem]:  # an old onnx represents it by another type
            continue
        span = span_of(tensor, folder)
        if span.path not in files:
            try:
                with open_plain(span.path) as stream:
                    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise errors.ModelError(
                    f"the weights of tensor {tensor.name!r} cannot be read from {span.path}: {error}"
                ) from error
            if span.offset + span.length > len(mapped):
                raise errors.ModelError(f"{span.path} became shorter while tensor {tensor.name!r} was read")
            files[span.path] = mapped
        count = span.length // dtype.itemsize
        weights[tensor.name] = np.frombuffer(files[span.path], dtype, count, span.offset).reshape(tuple(tensor.dims))
    for number, tensor in reversed(list(enumerate(model.graph.initializer))):
        if tensor.name in weights:
            del model.graph.initializer[number]
    return weights
