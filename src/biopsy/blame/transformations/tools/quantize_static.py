"""``onnxruntime.quantization.quantize_static``: its passes are the operators that it quantizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from biopsy.blame.transformations.tool import Omission, Setting, Tool, TransformOrder, write_model


class QuantizeStatic(Tool):
    """Static quantization, calibrated with the input samples."""

    summary = "onnxruntime.quantization.quantize_static"
    package = "onnxruntime"
    module = "onnxruntime.quantization"
    needs = ("onnx", "sympy")
    rounds_to = "int8"
    wants_samples = True
    declared: ClassVar[Mapping[str, Setting]] = {
        "format": Setting(default="QDQ", meaning="how it is written", choices=("QDQ", "QOperator")),
        "activations": Setting(default="QInt8", meaning="the type of activations", choices=("QInt8", "QUInt8")),
        "weights": Setting(default="QInt8", meaning="the type of weights", choices=("QInt8", "QUInt8")),
        "per_channel": Setting(default="no", meaning="a scale for each channel", choices=("yes", "no")),
    }

    def passes(self, source: str) -> list[str]:
        """The operators of the model that it can quantize."""
        registry = import_module("onnxruntime.quantization.registry")
        known = {*registry.QLinearOpsRegistry, *registry.QDQRegistry}  # its default, whatever the format
        model = import_module("onnx").load(source, load_external_data=False)
        return list(dict.fromkeys(node.op_type for node in model.graph.node if node.op_type in known))

    def transform(self, order: TransformOrder) -> None:
        """Quantize; in the control, the model goes through the tool's own load, with inferred shapes, and save."""
        quantization = import_module(self.module)
        if order.passes == ():
            load = import_module("onnxruntime.quantization.quant_utils").load_model_with_shape_infer
            write_model(load(import_module("pathlib").Path(order.source)), order.target)
            return
        types, settings = quantization.QuantType, self.settings
        quantization.quantize_static(
            order.source,
            order.target,
            _reader(quantization, order),
            quant_format=quantization.QuantFormat[settings["format"]],
            op_types_to_quantize=None if order.passes is None else list(order.passes),
            per_channel=settings["per_channel"] == "yes",
            activation_type=types[settings["activations"]],
            weight_type=types[settings["weights"]],
        )

    def omission(self, passes: Sequence[str]) -> Omission:
        """The operators to quantize are named, the others are not."""
        rest = f"[op for op in QDQRegistry if op not in {list(passes)}]"
        return Omission(python=f"quantize_static(model, out, reader, op_types_to_quantize={rest})")


def _reader(quantization: Any, order: TransformOrder) -> Any:
    """The samples, as a calibration reads them: one after the other, then None."""
    load = import_module("numpy").load

    class SampleReader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = self._all()

        def get_next(self) -> Mapping[str, Any] | None:
            return next(self._left, None)

        def _all(self) -> Iterator[Mapping[str, Any]]:
            for path in order.samples:
                with load(path, allow_pickle=False) as arrays:
                    yield {name: arrays[f"arr_{number}"] for number, name in enumerate(order.names)}

    return SampleReader()
