"""Which precisions are mixed, and a model for every choice of layers that are high, of floats or of int8."""

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
from typing import TYPE_CHECKING, Any, Literal

from biopsy import errors
from biopsy.model import onnx_native
from biopsy.model.external import load_into
from biopsy.model.index import ModelIndex
from biopsy.model.infer import without_weights
from biopsy.model.load import parse
from biopsy.model.walk import sort_nodes
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.precision import formats
from biopsy.questions.precision.caster import Assembly, Mixed, mixed, unchanged
from biopsy.questions.precision.formats import FLOAT16, FP16, FP32, Form, Format, RangeLoss, Weights, range_loss_of
from biopsy.questions.precision.plan import Layer, PrecisionPlan, plan_of, stored_values, without_functions
from biopsy.session.workspace import Workspace
from biopsy.tensors.results import Array, Feed

if TYPE_CHECKING:
    import onnx

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
    """The two precisions of a search, and how the low one gets into a model.

    ``emulate``: low layers compute in float32, and Casts round their inputs, weights and outputs. ``native``: they
    compute in the low type. int8 has a form of its own: QuantizeLinear and DequantizeLinear.
    """

    low: Low = "fp16"
    high: High = "float32"
    form: Form = "emulate"

    def require_possible(self) -> None:
        """Raise UsageError for a high precision that int8 cannot be mixed with."""
        if self.low == "int8" and self.high != "float32":
            raise errors.UsageError("--int8 needs -p float32")


def mixed_models(index: ModelIndex, place: Workspace, precisions: Precisions, feeds: Sequence[Feed]) -> MixedModels:
    """What makes the candidates of a search; ``feeds`` calibrate int8, and are not looked at for others.

    Raises UsageError if the precisions cannot be mixed, or not in this model; ModelError for a damaged one.
    """
    model = parse(index.buffer[:], index.path)
    places = {index.names[tensor]: data for tensor, data in place.places.items()}
    if precisions.low == "int8":
        return QuantizedModels(model, index.folder, places, feeds)
    return CastModels(model, _LOW[precisions.low], _HIGH[precisions.high], precisions.form, index.folder, places)


# What makes the candidates of a search: a model for every choice of layers that are high.


class MixedModels(ABC):
    """A model in every mixture of two precisions.

    ``layers`` can be high or low, in the order of the network. ``stays`` counts other nodes that compute but keep their
    precision, by the reason, ``passive`` those that have none of their own, by the operator. ``low_name`` and
    ``high_name`` are what a person calls the precisions. ``form``: how the low one gets into the model; None if it is
    neither of our own.
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
        """Weights and constants that the low precision cannot hold, among those that low layers read."""
        del high
        return ()


class CastModels(MixedModels):
    """Mixtures by explicit casts; see ``caster``. ``folder`` is where the model finds its external weights."""

    form: Form

    def __init__(
        self, model: onnx.ModelProto, low: Format, high: Format, form: Form, folder: Path, places: Mapping[str, bytes]
    ) -> None:
        """Raises UsageError if the model's opset has no Cast to one of the formats, or its form no nodes for them."""
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
        """How many nodes of the model give values of another type than in the model, those in bodies included."""
        return self._mixed(high).lowered


# A model with every layer in fp16 that can be: what ``--fp-to-fp16`` asks for.


def in_fp16(model: onnx.ModelProto, folder: Path) -> tuple[bytes, int, tuple[RangeLoss, ...]]:
    """The model's bytes with nodes that compute in fp16, how many do, and the weights and constants it cannot hold.

    Inputs and outputs keep their types, with Casts behind and before them. ``folder`` is where the external weights
    stand; they are cast in the model. Raises UsageError if the model's opset has no Cast to fp16.
    """
    models = CastModels(model, FP16, FP32, "native", folder, {})
    return b"".join(models.parts(frozenset())), models.lowered(frozenset()), models.range_loss(frozenset())


# Mixtures of int8 and float32: onnxruntime's own static quantization, with the high layers left out of it.
#
# The values that tensors take are recorded once; each candidate is quantized by them. QuantizeLinear and
# DequantizeLinear stand around what is low (the QDQ form), which every engine that knows int8 reads.

_LEAST_OPSET = 10
"""The first with QuantizeLinear and DequantizeLinear."""

_FOLLOWING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Slice", "Split", "Relu"})
"""What moves values and is quantized where what it reads is: left out, it would tear a low part in two."""


class CalibrationInputs(list[dict[str, Array]]):
    """Inputs as onnxruntime's calibration wants them: a CalibrationDataReader, which has each once."""

    def get_next(self) -> dict[str, Array] | None:
        """The next input, None after the last. It is a dict, since older releases take nothing else."""
        return self.pop(0) if self else None


class QuantizedModels(MixedModels):
    """A model with some layers in int8. ``feeds`` are the inputs whose values are recorded; all weights are loaded."""

    form = None
    low_name = "int8"
    high_name = "float32"

    def __init__(
        self, model: onnx.ModelProto, folder: Path, places: Mapping[str, bytes], feeds: Sequence[Feed]
    ) -> None:
        """Raises UsageError if the model cannot be quantized, EngineFailure if it cannot be run with the feeds."""
        self._original = unchanged(model, places)
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
        self._kinds = sorted({layer.op_type for layer in able} | _FOLLOWING)
        self._ranges = self._recorded(feeds)
        self._inferred = _typed(self._model)

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
            op_types_to_quantize=self._kinds,
            extra_options={},
        )
        with _quietly():
            quantizer.quantize_model()
        sort_nodes(quantizer.model.model.graph.node)  # onnxruntime's own sort does not see what bodies read
        return [quantizer.model.model.SerializeToString(deterministic=True)]

    def _recorded(self, feeds: Sequence[Feed]) -> Any:
        """The ranges of all tensors over the feeds, as onnxruntime's calibration gives them."""
        import onnx
        from onnxruntime.quantization import CalibrationMethod
        from onnxruntime.quantization.calibrate import create_calibrator

        if not feeds:
            raise errors.UsageError(
                "there are no inputs to calibrate int8 with", next_steps=["--load-inputs FILE    typical inputs"]
            )
        with temporary_folder("biopsy-") as folder, _quietly():
            path = folder / "model.onnx"
            onnx.save(deepcopy(self._model), path, save_as_external_data=True, location="weights")
            try:
                calibrator = create_calibrator(
                    path, self._kinds, str(folder / "augmented.onnx"), calibrate_method=CalibrationMethod.MinMax
                )
                calibrator.collect_data(CalibrationInputs(map(dict, feeds)))
                return calibrator.compute_data()
            except Exception as error:  # whatever onnxruntime raises: it says why
                raise errors.EngineFailure(
                    f"the model could not be run to record values for int8: {error}",
                    engine="onnxrt",
                    stage="run",
                    kind=type(error).__name__,
                    next_steps=["--load-inputs FILE    inputs that the model can be run with"],
                ) from error


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a name of its own, since layers are left out by name."""
    copy = deepcopy(model)
    seen, used = {node.name for node in copy.graph.node}, {""}
    for place, node in enumerate(copy.graph.node):
        if node.name in used:
            name = f"{node.name or node.op_type}_{place}"
            while name in seen:
                name += "_"
            node.name = name
            seen.add(name)
        used.add(node.name)
    return copy


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the types that can be told; the quantizer leaves what has none in float32."""
    inferred = onnx_native.inferred(without_weights(model)).model.graph
    copy = deepcopy(model)
    for listed, infos in ((copy.graph.value_info, inferred.value_info), (copy.graph.output, inferred.output)):
        del listed[:]
        listed.extend(infos)
    return copy


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what onnxruntime's quantizer prints and logs for each tensor that it leaves alone."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
