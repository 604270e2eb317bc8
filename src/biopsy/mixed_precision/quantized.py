"""Mixtures of int8 and float32: onnxruntime's own static quantization, with the high layers left out of it.

The values that tensors take are recorded once; each candidate is quantized by them. QuantizeLinear and DequantizeLinear
stand around what is low (the QDQ form), which every engine that knows int8 reads.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.isolation.cleanup import temporary_folder
from biopsy.mixed_precision.assembly import unchanged
from biopsy.mixed_precision.constants import RangeLoss
from biopsy.mixed_precision.functions import without_functions
from biopsy.mixed_precision.plan import Layer, plan_of
from biopsy.model import onnx_native
from biopsy.model.external import load_into
from biopsy.model.infer import without_weights
from biopsy.model.topology import sort_nodes
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    import onnx

_LEAST_OPSET = 10
"""The first with QuantizeLinear and DequantizeLinear."""

_FOLLOWING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Slice", "Split", "Relu"})
"""What moves values and is quantized where what it reads is: left out, it would tear a low part in two."""


class CalibrationInputs:
    """Inputs as onnxruntime's calibration wants them: a CalibrationDataReader."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = list(feeds)
        self._next = 0

    def get_next(self) -> Feed | None:
        """The next input, None after the last."""
        self._next += 1
        return self._feeds[self._next - 1] if self._next <= len(self._feeds) else None

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)


class QuantizedModels:
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
        self._quantized = _quantized_operators()
        plan = plan_of(self._model)
        if plan.opset < _LEAST_OPSET:
            raise errors.UsageError(f"int8 needs opset {_LEAST_OPSET}, and the model has opset {plan.opset}")
        able = [layer for layer in plan.layers if layer.op_type in self._quantized and not layer.where]
        self.layers: Sequence[Layer] = [_numbered(layer, number) for number, layer in enumerate(able)]
        self.passive: Mapping[str, int] = plan.passive
        left = Counter(layer.op_type for layer in plan.layers if layer.op_type not in self._quantized)
        inside = sum(1 for layer in plan.layers if layer.where)
        self.stays: Mapping[str, int] = {
            **{f"onnxruntime does not quantize {op_type}": count for op_type, count in left.items()},
            **({"bodies are not quantized": inside} if inside else {}),
        }
        self._ranges = self._recorded(feeds)
        self._inferred = _typed(self._model)

    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers left in float32."""
        if len(high) == len(self.layers):
            return self._original
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        copy = type(self._inferred)()
        copy.CopyFrom(self._inferred)
        names = [self._inferred.graph.node[layer.place].name for layer in self.layers if layer.number in high]
        kinds = sorted({layer.op_type for layer in self.layers} | _FOLLOWING)
        quantizer = QDQQuantizer(
            copy,
            per_channel=False,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QInt8,
            tensors_range=self._ranges,
            nodes_to_quantize=[],
            nodes_to_exclude=names,
            op_types_to_quantize=kinds,
            extra_options={},
        )
        with _quietly():
            quantizer.quantize_model()
        sort_nodes(quantizer.model.model.graph.node)  # onnxruntime's own sort does not see what bodies read
        return [quantizer.model.model.SerializeToString(deterministic=True)]

    def range_loss(self, high: frozenset[int]) -> tuple[RangeLoss, ...]:
        """None: scales are made to fit the weights."""
        del high
        return ()

    def _recorded(self, feeds: Sequence[Feed]) -> Any:
        """The ranges of all tensors over the feeds, as onnxruntime's calibration gives them."""
        import onnx
        from onnxruntime.quantization import CalibrationMethod
        from onnxruntime.quantization.calibrate import create_calibrator

        if not feeds:
            raise errors.UsageError(
                "there are no inputs to calibrate int8 with", next_steps=["--load-inputs FILE    typical inputs"]
            )
        kinds = sorted({layer.op_type for layer in self.layers} | _FOLLOWING)
        with temporary_folder("biopsy-") as folder, _quietly():
            path = folder / "model.onnx"
            copy = onnx.ModelProto()
            copy.CopyFrom(self._model)
            onnx.save(copy, path, save_as_external_data=True, location="weights")
            try:
                calibrator = create_calibrator(
                    path, kinds, str(folder / "augmented.onnx"), calibrate_method=CalibrationMethod.MinMax
                )
                calibrator.collect_data(CalibrationInputs(feeds))
                return calibrator.compute_data()
            except Exception as error:  # whatever onnxruntime raises: it says why
                raise errors.EngineFailure(
                    f"the model could not be run to record values for int8: {error}",
                    engine="onnxrt",
                    stage="run",
                    kind=type(error).__name__,
                    next_steps=["--load-inputs FILE    inputs that the model can be run with"],
                ) from error


def _numbered(layer: Layer, number: int) -> Layer:
    from dataclasses import replace

    return replace(layer, number=number)


def _quantized_operators() -> frozenset[str]:
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return frozenset({*QDQRegistry, *QLinearOpsRegistry})


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a name of its own, since layers are left out by name."""
    copy = type(model)()
    copy.CopyFrom(model)
    seen = {node.name for node in copy.graph.node}
    used: set[str] = {""}
    for place, node in enumerate(copy.graph.node):
        name = node.name
        if name in used:
            name = f"{node.name or node.op_type}_{place}"
            while name in seen:
                name += "_"
            node.name = name
        seen.add(name)
        used.add(name)
    return copy


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the types that can be told; the quantizer leaves what has none in float32."""
    told = onnx_native.inferred(without_weights(model)).model.graph
    copy = type(model)()
    copy.CopyFrom(model)
    for listed, infos in ((copy.graph.value_info, told.value_info), (copy.graph.output, told.output)):
        del listed[:]
        listed.extend(infos)
    return copy


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what onnxruntime's quantizer prints and logs for each tensor that it leaves alone."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
