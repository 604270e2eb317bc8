"""Rows of ``inspect ...``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

_MODEL = (
    shared.TENSORFLOW.of("--ckpt", "--freeze-graph"),
    OptionDifference(
        ("--shape-inference", "--do-shape-inference"),
        "refused",
        "the types and shapes are shown that the model holds",
        "biopsy surgeon sanitize MODEL -o inferred.onnx    writes inferred ones into it",
        values=False,
    ),
    shared.ONNXRUNTIME_SHAPE_INFERENCE._replace(why="inspect model infers nothing"),
    OptionDifference(
        ("--ignore-external-data",),
        "no effect",
        "weights in other files are read for --show weights alone",
        values=False,
    ),
    shared.TO_FP16,
    OptionDifference(
        (
            "--plugins",
            "--onnx-flags",
            "--plugin-instancenorm",
            "--enable-uint8-asymmetric-quantization-dla",
            "--strongly-typed",
            "--layer-precisions",
            "--decomposable-attentions",
            "--tensor-dtypes",
            "--tensor-datatypes",
            "--all-tensor-dtypes",
            "--all-tensor-datatypes",
            "--tensor-formats",
            "--all-tensor-formats",
            "--trt-network-postprocess-script",
            "--trt-npps",
            "--mark-debug",
            "--mark-unfused-tensors-as-debug-tensors",
            "--save-timing-cache",
        ),
        "refused",
        "--display-as trt shows the network as TensorRT's parser makes it by default, and builds nothing",
        "biopsy run MODEL --trt --build-only --save-engine FILE.engine ...    and biopsy inspect model FILE.engine",
    ),
    OptionDifference(
        ("--load-runtime", "--dla-workspace-allocation-strategy"),
        "refused",
        "an engine is read by TensorRT's own runtime, with its defaults",
        "leave it out",
    ),
    OptionDifference(
        ("--visual", "--visual-port", "--save-visual"),
        "refused",
        "nothing is drawn",
        "netron MODEL, of pip install netron",
    ),
    OptionDifference(
        ("--convert-to", "--display-as"),
        "differs",
        "trt shows what TensorRT's parser makes of the model, for RTX without a GPU",
    ),
    OptionDifference(
        ("--model-type",), "differs", "onnx and engine; an engine may also be OpenVINO's or ONNX Runtime's"
    ),
    OptionDifference(
        ("--combine-tensor-info",), "differs", "a file of saved outputs, from which range and mean are computed"
    ),
)

_CAPABILITY = (
    shared.SHAPE_INFERENCE,
    shared.ONNXRUNTIME_SHAPE_INFERENCE,
    shared.IGNORE_EXTERNAL_DATA._replace(why="an engine cannot be asked about a model without its weights"),
    shared.TO_FP16,
    OptionDifference(
        (
            "--save-external-data",
            "--external-data-path",
            "--external-data-size-threshold",
            "--no-save-all-tensors-to-one-file",
        ),
        "refused",
        "each part is one file with its weights inside",
        "biopsy surgeon sanitize PART -o FILE --save-external-data    writes them beside it",
    ),
    OptionDifference(
        ("-o", "--output"),
        "differs",
        "writes the parts by itself too, without --with-partitioning; the folder must be empty",
    ),
    OptionDifference(
        ("--with-partitioning",),
        "differs",
        "parts without a cycle between them, each built by the engine before it counts as supported",
    ),
)

_SPARSITY = (
    OptionDifference(
        ("--ignore-external-data",),
        "refused",
        "the values of the weights are what is looked at",
        "--external-data-dir DIR, if they stand elsewhere",
        values=False,
    ),
    shared.TO_FP16,
)

_DIFF_TACTICS = (
    OptionDifference(
        ("--dir", "--good", "--bad"),
        "differs",
        "records of biopsy and tactic replays of Polygraphy; each choice is tested for statistical significance",
    ),
)

INSPECT = {
    "inspect model": _MODEL,
    "inspect capability": _CAPABILITY,
    "inspect sparsity": _SPARSITY,
    "inspect diff-tactics": _DIFF_TACTICS,
}
