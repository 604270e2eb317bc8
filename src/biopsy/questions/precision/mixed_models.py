"""Models of mixed precision for every choice of high layers: with Casts, or quantized to int8."""

from __future__ import annotations

import contextlib
import io
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from biopsy import errors
from biopsy.model import onnx_native
from biopsy.model.external import load_into
from biopsy.model.index import ModelIndex
from biopsy.model.infer import without_weights
from biopsy.model.load import parse
from biopsy.model.walk import sort_nodes
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.precision import formats
from biopsy.questions.precision.caster import Assembly, Mixed, mixed, unchanged_parts
from biopsy.questions.precision.formats import FLOAT16, FP16, FP32, Form, Format, RangeLoss, Weights, range_loss_of
from biopsy.questions.precision.plan import Layer, PrecisionPlan, plan_of, stored_values, without_functions
from biopsy.session.workspace import Workspace
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed

Low = Literal["fp16", "bf16", "fp8", "fp8_e5m2", "int8"]
"""Low precisions; ``fp8`` is the format e4m3fn."""

High = Literal["float32", "float16"]

_LOW: Mapping[Low, Format] = {
    "fp16": formats.FP16,
    "bf16": formats.BF16,
    "fp8": formats.FP8_E4M3FN,
    "fp8_e5m2": formats.FP8_E5M2,
}
_HIGH: Mapping[High, Format] = {"float32": formats.FP32, "float16": formats.FP16}


@dataclass(frozen=True, kw_only=True)
class Precisions:
    """The two precisions of a search, and the form of the low one.

    ``emulate``: low layers compute in float32, and Casts round their inputs, weights and outputs. ``native``: they
    compute in the low type. int8 ignores the form and uses QuantizeLinear and DequantizeLinear.
    """

    low: Low = "fp16"
    high: High = "float32"
    form: Form = "emulate"

    def require_possible(self) -> None:
        """Raise UsageError for int8 with another high precision than float32."""
        if self.low == "int8" and self.high != "float32":
            raise errors.UsageError("--int8 needs -p float32")


def mixed_models(index: ModelIndex, place: Workspace, precisions: Precisions, feeds: Sequence[Feed]) -> MixedModels:
    """Makes the candidates of a search. ``feeds`` are only used to calibrate int8.

    Raises UsageError if the precisions cannot be mixed in this model, ModelError for a damaged one.
    """
    model = parse(index.buffer[:], index.path)
    places = {index.names[tensor]: data for tensor, data in place.places.items()}
    if precisions.low == "int8":
        return QuantizedModels(model, index.folder, places, feeds)
    return CastModels(model, _LOW[precisions.low], _HIGH[precisions.high], precisions.form, index.folder, places)


class MixedModels(ABC):
    """A model in every mixture of two precisions.

    ``layers``, in the order of the network, can be high or low. ``stays`` counts nodes that compute but keep their
    precision, by the reason; ``passive`` counts nodes without a precision of their own, by the operator. ``low_name``
    and ``high_name`` are the precisions for messages. ``form`` is None for int8.
    """

    layers: Sequence[Layer]
    stays: Mapping[str, int]
    passive: Mapping[str, int]
    low_name: str
    high_name: str
    form: Form | None

    @abstractmethod
    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers high and all others low."""

    def range_loss(self, high: frozenset[int]) -> tuple[RangeLoss, ...]:
        """Weights and constants of low layers that the low precision cannot hold."""
        del high
        return ()


class CastModels(MixedModels):
    """Mixtures by explicit Casts; see ``caster``. ``folder`` has the model's external weights."""

    form: Form

    def __init__(
        self, model: onnx.ModelProto, low: Format, high: Format, form: Form, folder: Path, places: Mapping[str, bytes]
    ) -> None:
        """Raises UsageError if the form or the model's opset does not support one of the formats."""
        if low is high:
            raise errors.UsageError(f"--precision {high} is no higher precision than {low}", next_steps=["-p float32"])
        if form == "native" and low.name.startswith("fp8"):
            raise errors.UsageError(
                "no operator of ONNX computes in fp8, so there is no --native form of it",
                next_steps=["--emulate", "--int8    quantizes with QuantizeLinear and DequantizeLinear"],
            )
        self._low, self._high, self.form = low, high, form
        needed = frozenset({low.elem, high.elem} - {FP32.elem}) if form == "native" else frozenset({FLOAT16})
        self._plan: PrecisionPlan = plan_of(without_functions(model), needed)
        for each in (low, high):
            if self._plan.opset < each.least_opset:
                raise errors.UsageError(
                    f"Cast knows {each} since opset {each.least_opset}, and the model has opset {self._plan.opset}",
                    next_steps=[
                        f"convert it: onnx.version_converter.convert_version(onnx.load(MODEL), {each.least_opset})"
                    ],
                )
        self.layers, self.stays, self.passive = self._plan.layers, self._plan.stays, self._plan.passive
        self.low_name, self.high_name = low.name, high.name
        self._folder = folder
        self._weights = Weights(folder)
        self._assembly = Assembly(self._plan.model, places)

    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers high and all others low."""
        return self._assembly.parts(self._mixed(high))

    def _mixed(self, high: frozenset[int]) -> Mixed:
        return mixed(self._plan, lambda number: self._high if number in high else self._low, self.form, self._weights)

    def range_loss(self, high: frozenset[int]) -> tuple[RangeLoss, ...]:
        """Weights and constants with values that become infinite or zero in the low format."""
        stored = stored_values(self._plan.graph, lambda number: number not in high)
        losses = {name: range_loss_of(value, self._folder, self._low) for name, value in stored.items()}
        return tuple(replace(loss, name=name) for name, loss in losses.items() if loss is not None)

    def lowered(self, high: frozenset[int]) -> int:
        """The number of nodes, also in bodies, whose outputs have another type than in the model."""
        return self._mixed(high).lowered


def in_fp16(model: onnx.ModelProto, folder: Path) -> tuple[bytes, int, tuple[RangeLoss, ...]]:
    """The bytes of the model with all possible layers in fp16, their number, and weights that fp16 cannot hold.

    Inputs and outputs keep their types by Casts. ``folder`` has the external weights, which are cast in the model.
    Raises UsageError if the model's opset has no Cast to fp16.
    """
    models = CastModels(model, FP16, FP32, "native", folder, {})
    return b"".join(models.parts(frozenset())), models.lowered(frozenset()), models.range_loss(frozenset())


_LEAST_OPSET = 10
"""The first opset with QuantizeLinear and DequantizeLinear."""

_FOLLOWING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Slice", "Split", "Relu"})
"""Operators that move values: they are quantized if their input is, as they would split a low part otherwise."""


class CalibrationInputs(list[dict[str, Array]]):
    """Inputs as a CalibrationDataReader of onnxruntime, which yields each once."""

    def get_next(self) -> dict[str, Array] | None:
        """The next input, a dict as older releases require; None after the last."""
        return self.pop(0) if self else None


class QuantizedModels(MixedModels):
    """Mixtures of int8 and float32 by onnxruntime's static quantization, in the QDQ form that most engines read.

    The ranges of all tensors are recorded once with ``feeds``. All weights are loaded.
    """

    form = None
    low_name = "int8"
    high_name = "float32"

    def __init__(
        self, model: onnx.ModelProto, folder: Path, places: Mapping[str, bytes], feeds: Sequence[Feed]
    ) -> None:
        """Raises UsageError if the model cannot be quantized, EngineFailure if it cannot be run with the feeds."""
        self._original = unchanged_parts(model, places)
        load_into(model, folder)
        self._model = _with_names(without_functions(model))
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        quantized = frozenset({*QDQRegistry, *QLinearOpsRegistry})
        plan = plan_of(self._model)
        if plan.opset < _LEAST_OPSET:
            raise errors.UsageError(f"int8 needs opset {_LEAST_OPSET}, and the model has opset {plan.opset}")
        able = [layer for layer in plan.layers if layer.op_type in quantized and not layer.where]
        self.layers = [replace(layer, number=number) for number, layer in enumerate(able)]
        self.passive = plan.passive
        left = Counter(layer.op_type for layer in plan.layers if layer.op_type not in quantized)
        inside = sum(1 for layer in plan.layers if layer.where)
        self.stays = {
            **{f"onnxruntime does not quantize {op_type}": count for op_type, count in left.items()},
            **({"bodies are not quantized": inside} if inside else {}),
        }
        self._op_types = sorted({layer.op_type for layer in able} | _FOLLOWING)
        self._ranges = self._calibrated(feeds)
        types = onnx_native.inferred(without_weights(self._model)).model.graph
        self._inferred = deepcopy(self._model)  # the quantizer leaves tensors without a type in float32
        graph = self._inferred.graph
        for infos, inferred in ((graph.value_info, types.value_info), (graph.output, types.output)):
            del infos[:]
            infos.extend(inferred)

    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers left in float32."""
        if len(high) == len(self.layers):
            return self._original
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        names = [self._inferred.graph.node[layer.place].name for layer in self.layers if layer.number in high]
        quantizer = QDQQuantizer(
            deepcopy(self._inferred),
            per_channel=False,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QInt8,
            tensors_range=self._ranges,
            nodes_to_quantize=[],
            nodes_to_exclude=names,
            op_types_to_quantize=self._op_types,
            extra_options={},
        )
        with _silenced():
            quantizer.quantize_model()
        sort_nodes(quantizer.model.model.graph.node)  # onnxruntime's own sort ignores reads of bodies
        return [quantizer.model.model.SerializeToString(deterministic=True)]

    def _calibrated(self, feeds: Sequence[Feed]) -> Any:
        """The ranges of all tensors over the feeds, as onnxruntime's calibration gives them."""
        from onnxruntime.quantization import CalibrationMethod
        from onnxruntime.quantization.calibrate import create_calibrator

        if not feeds:
            raise errors.UsageError(
                "there are no inputs to calibrate int8 with", next_steps=["--load-inputs FILE    typical inputs"]
            )
        with temporary_folder("biopsy-") as folder, _silenced():
            path = folder / "model.onnx"
            onnx.save(deepcopy(self._model), path, save_as_external_data=True, location="weights")
            try:
                calibrator = create_calibrator(
                    path, self._op_types, str(folder / "augmented.onnx"), calibrate_method=CalibrationMethod.MinMax
                )
                calibrator.collect_data(CalibrationInputs(map(dict, feeds)))
                return calibrator.compute_data()
            except Exception as error:  # onnxruntime raises errors of many types
                raise errors.EngineFailure(
                    f"the model could not be run to record values for int8: {error}",
                    engine="onnxrt",
                    stage="run",
                    kind=type(error).__name__,
                    next_steps=["--load-inputs FILE    inputs that the model can be run with"],
                ) from error


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose nodes have unique names, since layers are excluded by name."""
    copy = deepcopy(model)
    taken, used = {node.name for node in copy.graph.node}, {""}
    for place, node in enumerate(copy.graph.node):
        if node.name in used:
            name = f"{node.name or node.op_type}_{place}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        used.add(node.name)
    return copy


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the output and logs of onnxruntime's quantizer about each tensor that it skips."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
