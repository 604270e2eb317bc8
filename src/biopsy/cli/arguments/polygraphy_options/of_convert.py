"""Rows of ``convert``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

_CONVERT = (
    shared.TENSORFLOW.of("--ckpt", "--tf-outputs", "--freeze-graph", "--opset"),
    shared.SHAPE_INFERENCE,
    shared.ONNXRUNTIME_SHAPE_INFERENCE,
    shared.IGNORE_EXTERNAL_DATA,
    shared.LOADER_MODULE,
    *shared.TENSORRT,
    shared.LOAD_TACTICS,
    shared.SAVE_TACTICS,
    shared.ONE_WEIGHTS_FILE,
    OptionDifference(
        shared.DRAWS,
        "refused",
        "convert runs nothing: TensorRT 11 and TensorRT-RTX take int8 from the model's own QuantizeLinear and "
        "DequantizeLinear",
        "biopsy debug precision MODEL --int8 --load-inputs FILE -o FILE --check ...    writes such a model",
    ),
    OptionDifference(
        ("--engine-capability",),
        "refused",
        "engines are built for the standard capability",
        "build with trtexec, then biopsy run FILE.engine --trt",
    ),
    OptionDifference(("--model-type",), "differs", "only onnx"),
    OptionDifference(
        ("--convert-to",),
        "differs",
        "onnx, trt, openvino or onnxrt; no onnx-like-trt-network, for which there is "
        "biopsy inspect model MODEL --display-as trt",
    ),
    OptionDifference(("-o", "--output"), "differs", "the result is loaded again before it replaces anything"),
    OptionDifference(
        ("--fp-to-fp16",), "differs", "by biopsy's own conversion, with a warning for each weight that fp16 cannot hold"
    ),
    shared.PRECISIONS,
)

CONVERT = {"convert": _CONVERT}
