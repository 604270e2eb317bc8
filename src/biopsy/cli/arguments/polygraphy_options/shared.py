"""Rows that several commands have: see ``difference``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

TENSORFLOW = OptionDifference(
    (
        "--tf", "--tftrt", "--use-tftrt", "--minimum-segment-size", "--dynamic-op", "--ckpt", "--tf-outputs",
        "--save-pb", "--save-tensorboard", "--freeze-graph", "--gpu-memory-fraction", "--allow-growth", "--xla",
        "--save-timeline", "--opset",
    ),
    "refused",
    "biopsy runs ONNX models, and none of TensorFlow",
    "python -m tf2onnx.convert --saved-model DIR --output model.onnx",
)  # fmt: skip

_INFERRED = "types and shapes are inferred where they are needed, by onnx"
SHAPE_INFERENCE = OptionDifference(("--shape-inference", "--do-shape-inference"), "no effect", _INFERRED, values=False)
ONNXRUNTIME_SHAPE_INFERENCE = OptionDifference(
    ("--no-onnxruntime-shape-inference",), "no effect", _INFERRED, values=False
)
IGNORE_EXTERNAL_DATA = OptionDifference(
    ("--ignore-external-data",),
    "refused",
    "a model cannot be run or built without its weights",
    "--external-data-dir DIR, if they stand elsewhere",
)
TO_FP16 = OptionDifference(
    ("--fp-to-fp16",),
    "refused",
    "models are not converted on the way: another one would be looked at than the one that you have",
    "biopsy convert MODEL -o half.onnx --fp-to-fp16    and then the same with half.onnx",
)
NOT_AS_IT_IS = (ONNXRUNTIME_SHAPE_INFERENCE, IGNORE_EXTERNAL_DATA, TO_FP16)
LOADING = (SHAPE_INFERENCE, *NOT_AS_IT_IS)

LOADER_MODULE = OptionDifference(
    ("--data-loader-backend-module",), "no effect", "values are made by NumPy, the same for every engine"
)

DRAWS = ("--seed", "--val-range", "--iterations", "--iters", "--load-inputs", "--load-input-data",
         "--data-loader-script")  # fmt: skip
"""The options that say what inputs are like."""

_TYPES_OF_THE_MODEL = "biopsy debug precision writes a model with the precision of each layer in it"
TENSORRT = (
    OptionDifference(
        ("--precision-constraints", "--layer-precisions"),
        "refused",
        "TensorRT 11 and TensorRT-RTX compute in the types of the model, and biopsy sets none of layers in TensorRT 10",
        _TYPES_OF_THE_MODEL,
    ),
    OptionDifference(
        ("--calibration-cache", "--calib-base-cls", "--calibration-base-class", "--quantile", "--regression-cutoff"),
        "refused",
        "calibration is not part of a build: TensorRT 11 and TensorRT-RTX take int8 from the model's own "
        "QuantizeLinear and DequantizeLinear",
        "biopsy debug precision --int8 --load-inputs FILE, or NVIDIA's ModelOpt, writes such a model",
    ),
    OptionDifference(
        ("--trt-config-script", "--trt-config-postprocess-script", "--trt-cpps", "--trt-network-postprocess-script",
         "--trt-npps"),
        "refused",
        "scripts do not get at TensorRT's objects here",
        "build the engine with a script of yours, then biopsy run FILE.engine --trt",
    ),
    OptionDifference(
        ("--use-dla",), "refused", "layers are not put on a DLA here", "build with trtexec, then run FILE.engine --trt"
    ),
    OptionDifference(
        ("--preview-features", "--quantization-flags"),
        "refused",
        "these flags of TensorRT are left at their defaults",
        "build with trtexec, then biopsy run FILE.engine --trt",
    ),
    OptionDifference(
        ("--plugin-instancenorm",),
        "refused",
        "flags of the ONNX parser can be set here and not cleared",
        "--onnx-flags NAME    sets one",
    ),
    OptionDifference(
        ("--enable-uint8-asymmetric-quantization-dla",),
        "refused",
        "it is deprecated in Polygraphy, too",
        "--onnx-flags enable_uint8_and_asymmetric_quantization_dla",
    ),
    OptionDifference(
        ("--trt-outputs-by-type",),
        "refused",
        "tensors of TensorRT's network are chosen by their names alone",
        "--trt-outputs NAME ..., or --onnx-outputs-by-type for those of the model",
    ),
    OptionDifference(
        ("--decomposable-attentions",),
        "refused",
        "layers of TensorRT's network are not changed here",
        "build with a script of yours, then biopsy run FILE.engine --trt",
    ),
    OptionDifference(
        ("--tensor-dtypes", "--tensor-datatypes", "--all-tensor-dtypes", "--all-tensor-datatypes", "--tensor-formats",
         "--all-tensor-formats"),
        "refused",
        "inputs and outputs of an engine have the types and the plain layout of the model",
        "change the types in the model, or build with trtexec, then biopsy run FILE.engine --trt",
    ),
    OptionDifference(
        ("--mark-debug", "--mark-unfused-tensors-as-debug-tensors"),
        "refused",
        "tensors inside are seen as outputs here",
        "--trt-outputs NAME, or --trt-outputs mark all",
    ),
)  # fmt: skip

LOAD_TACTICS = OptionDifference(
    ("--load-tactics", "--load-tactic-replay"),
    "refused",
    "TensorRT 11 and TensorRT-RTX replay no tactics, and biopsy replays none in TensorRT 10",
    "--load-timing-cache FILE --error-on-timing-cache-miss    repeats what an earlier build chose",
)

SAVE_TACTICS = OptionDifference(
    ("--save-tactics", "--save-tactic-replay"),
    "refused",
    "this command does not write what an engine chose",
    "biopsy debug build MODEL --trt --until 1 --check build --save-tactics FILE",
)

ONE_WEIGHTS_FILE = OptionDifference(
    ("--no-save-all-tensors-to-one-file",),
    "refused",
    "weights that leave the model go into one file",
    "--save-external-data FILE",
    values=False,
)

PRECISIONS = OptionDifference(
    ("--fp16", "--bf16", "--fp8", "--int8"),
    "differs",
    "only where TensorRT has such flags: not in TensorRT 11, nor in TensorRT-RTX",
)
