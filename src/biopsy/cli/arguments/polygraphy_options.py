"""What becomes here of the options of Polygraphy that are not the same, or not here, command by command: data for
the parsers, for the docs and for tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Fate = Literal["refused", "no effect", "differs"]
"""``refused``: wrong usage, which says why and what to type instead. ``no effect``: it is accepted and a line says why
nothing changes. ``differs``: it is an option here too, with another meaning, or with more or fewer values."""


class OptionDifference(NamedTuple):
    """Some spellings of Polygraphy, what becomes of them here, why, and what there is instead (words to type or do)."""

    options: tuple[str, ...]
    fate: Fate
    why: str
    instead: str = ""
    values: bool = True
    """Whether values may follow."""

    def of(self, *options: str) -> OptionDifference:
        """The same of some of its spellings: those that a command has."""
        return self._replace(options=options)


# Rows that several commands have: see ``difference``.

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


# Rows of ``run``.

_RUN = (
    TENSORFLOW,
    *LOADING,
    LOADER_MODULE,
    *TENSORRT,
    LOAD_TACTICS,
    SAVE_TACTICS,
    ONE_WEIGHTS_FILE,
    OptionDifference(
        ("--gen", "--gen-script"),
        "refused",
        "biopsy writes no scripts",
        "biopsy.run and biopsy.compare do the same from Python",
    ),
    OptionDifference(
        ("--pluginref",), "refused", "there is no CPU reference of plug-ins", "--reference    onnx's own evaluator"
    ),
    OptionDifference(
        (
            "--load-runtime",
            "--dla-workspace-allocation-strategy",
            "--optimization-profile",
            "--allocation-strategy",
            "--weight-streaming-budget",
        ),
        "refused",
        "an engine is run with TensorRT's defaults, in the first optimization profile that takes the shapes",
        "leave it out",
    ),
    OptionDifference(
        ("--use-subprocess",),
        "no effect",
        "an engine that ends its process is always noticed, and told by name",
        values=False,
    ),
    OptionDifference(
        ("--sequential-runners",),
        "no effect",
        "engines always run one after the other, each freed before the next",
        values=False,
    ),
    OptionDifference(
        ("--infinities-compare-equal",),
        "no effect",
        "infinities of the same sign always compare equal",
        values=False,
    ),
    OptionDifference(
        ("--save-input-blob",),
        "refused",
        "raw binary files say neither type nor shape",
        "--save-inputs inputs.npz, and array.tofile(...) in Python",
    ),
    OptionDifference(
        ("--compare-func-script",),
        "differs",
        "the function takes what is judged and what is expected, and may return one bool; what is "
        "no clear yes or no is an error",
    ),
    OptionDifference(
        ("--postprocess-func-script",),
        "differs",
        "the function takes and returns a dictionary of arrays; --postprocess still applies, to what it returns",
    ),
    OptionDifference(
        ("--no-shape-check",), "refused", "outputs of different shapes never agree here", "reshape them in the model"
    ),
    OptionDifference(
        ("--check-average",),
        "refused",
        "every iteration must agree",
        "--check-error-stat mean    takes the mean within each",
    ),
    OptionDifference(
        ("--save-accuracy-results",), "refused", "the findings have a form of our own", "--report FILE.json"
    ),
    OptionDifference(
        ("--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot", "--show-error-metrics-plot"),
        "refused",
        "nothing is drawn",
        "--save-outputs outputs.npz, and matplotlib",
    ),
    OptionDifference(
        ("--lpips-threshold", "--lpips-tolerance"),
        "refused",
        "perceptual metrics need a network of PyTorch's",
        "--psnr or --snr",
    ),
    OptionDifference(("--model-type",), "differs", "only onnx and engine: other kinds of models are not run"),
    OptionDifference(
        ("--atol", "--abs-tol", "--rtol", "--rel-tol"),
        "differs",
        "|actual - expected| <= atol + rtol * |expected| for every element, as in NumPy; integers and booleans exactly",
    ),
    OptionDifference(
        ("--compare", "--compare-func"),
        "differs",
        "no perceptual_metrics; ulp in addition; without it, every limit of yours counts",
    ),
    OptionDifference(
        ("--save-engine",), "differs", "any engine that saves what it builds: .engine, .xml, .blob or .ort"
    ),
    OptionDifference(
        ("--load-outputs", "--load-results"),
        "differs",
        "every engine is compared with all of them, by name; without "
        "an engine, the files are compared with the first of them",
    ),
    OptionDifference(
        ("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes"),
        "differs",
        "the run chooses the first profile that takes the shapes of its inputs",
    ),
    OptionDifference(
        ("--fp16", "--bf16", "--fp8", "--int8"),
        "differs",
        "only where TensorRT has such flags: not in TensorRT 11, nor in TensorRT-RTX",
    ),
)

RUN = {"run": _RUN}


# Rows of ``debug ...``.

_NOT_RUN = "debug build runs nothing itself: inputs belong to the check"
_BUILD = (
    *LOADING,
    LOADER_MODULE,
    *TENSORRT,
    LOAD_TACTICS,
    OptionDifference(
        ("--load-inputs", "--load-input-data", "--data-loader-script", "--val-range", "--iterations", "--iters"),
        "refused",
        _NOT_RUN,
        "--check biopsy run {} ... --load-inputs FILE",
    ),
    OptionDifference(("--seed",), "differs", "the seed of the order of builds, not of inputs"),
    OptionDifference(("--save-tactics", "--save-tactic-replay"), "differs", "JSON of our own, for any engine"),
    OptionDifference(("--model-type",), "differs", "only onnx"),
)

_PRECISION = (
    *LOADING,
    LOADER_MODULE,
    *TENSORRT,
    LOAD_TACTICS,
    SAVE_TACTICS,
    OptionDifference(
        ("--trt-outputs", "--trt-exclude-outputs"),
        "refused",
        "candidates have the outputs of the model",
        "biopsy debug layers    looks at tensors inside",
    ),
    OptionDifference(("--model-type",), "differs", "only onnx"),
    OptionDifference(("--mode",), "differs", "minimal, which finds a set of layers by name, is the default"),
    OptionDifference(
        ("--fp16", "--bf16", "--fp8", "--int8"),
        "differs",
        "precisions are casts in the model, so that every engine shows the effect",
    ),
)

_REDUCE = (
    *NOT_AS_IT_IS,
    LOADER_MODULE,
    ONE_WEIGHTS_FILE,
    OptionDifference(
        ("--external-data-size-threshold",),
        "refused",
        "weights of 1024 bytes or more go into the file of --save-external-data",
        "biopsy surgeon sanitize reduced.onnx -o FILE --save-external-data --external-data-size-threshold SIZE",
    ),
    OptionDifference(("--mode",), "differs", "minimal is the default: until no single node can be removed"),
    OptionDifference(("--load-debug-replay",), "differs", "replays of our own form; resuming needs none"),
)

DEBUG = {"debug build": _BUILD, "debug precision": _PRECISION, "debug reduce": _REDUCE}


# Rows of ``convert``.

_CONVERT = (
    TENSORFLOW.of("--ckpt", "--tf-outputs", "--freeze-graph", "--opset"),
    SHAPE_INFERENCE,
    ONNXRUNTIME_SHAPE_INFERENCE,
    IGNORE_EXTERNAL_DATA,
    LOADER_MODULE,
    *TENSORRT,
    LOAD_TACTICS,
    SAVE_TACTICS,
    ONE_WEIGHTS_FILE,
    OptionDifference(
        DRAWS,
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
    PRECISIONS,
)

CONVERT = {"convert": _CONVERT}


# Rows of ``inspect ...``.

_MODEL = (
    TENSORFLOW.of("--ckpt", "--freeze-graph"),
    OptionDifference(
        ("--shape-inference", "--do-shape-inference"),
        "refused",
        "the types and shapes are shown that the model holds",
        "biopsy surgeon sanitize MODEL -o inferred.onnx    writes inferred ones into it",
        values=False,
    ),
    ONNXRUNTIME_SHAPE_INFERENCE._replace(why="inspect model infers nothing"),
    OptionDifference(
        ("--ignore-external-data",),
        "no effect",
        "weights in other files are read for --show weights alone",
        values=False,
    ),
    TO_FP16,
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
    SHAPE_INFERENCE,
    ONNXRUNTIME_SHAPE_INFERENCE,
    IGNORE_EXTERNAL_DATA._replace(why="an engine cannot be asked about a model without its weights"),
    TO_FP16,
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
    TO_FP16,
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


# Rows of ``check ...``.

_LINT = (
    IGNORE_EXTERNAL_DATA._replace(why="the nodes of a model cannot be run without its weights"),
    TO_FP16,
    LOADER_MODULE,
    OptionDifference(
        ("-o", "--output"), "differs", "the same JSON, with every node that fails, not only the first one"
    ),
)

CHECK = {"check lint": _LINT}


# Rows of ``surgeon ...``.

_TO_FP16 = TO_FP16._replace(why="surgeon commands change what they name, and nothing else")
_ALL = (_TO_FP16, ONE_WEIGHTS_FILE)

_DRAWN = OptionDifference(
    DRAWS, "differs", "says the inputs of the run that --force-fallback-shape-inference takes shapes from: one"
)
_ANYWAY = OptionDifference(
    ("--shape-inference", "--do-shape-inference"), "differs", "it is the default; --no-shape-inference switches it off"
)
_BY_ONNX = OptionDifference(
    ("--no-onnxruntime-shape-inference",), "differs", "changes nothing: onnx alone infers shapes"
)
_KEPT = OptionDifference(
    ("--ignore-external-data",), "differs", "what is written refers to the weights as the model does"
)

_EXTRACT = (
    *_ALL,
    _KEPT,
    _ANYWAY,
    _BY_ONNX,
    LOADER_MODULE,
    _DRAWN,
)

_SANITIZE = (
    *_ALL,
    _KEPT,
    _BY_ONNX,
    LOADER_MODULE,
    _DRAWN,
    OptionDifference(
        ("--partitioning",),
        "differs",
        "changes nothing: each node is folded by itself, and one that cannot be never keeps others from it",
    ),
    OptionDifference(
        ("--fold-size-threshold",),
        "differs",
        "without it, results up to 262144 elements are computed, of weights up to 8192",
    ),
    OptionDifference(("--num-passes", "--num-const-fold-passes"), "differs", "without it, until nothing changes"),
)

SURGEON = {
    "surgeon extract": _EXTRACT,
    "surgeon sanitize": _SANITIZE,
    "surgeon insert": (*_ALL, _KEPT, _ANYWAY, _BY_ONNX),
    "surgeon prune": (*_ALL, _KEPT),
    "surgeon weight-strip": (*_ALL, _KEPT),
    "surgeon weight-reconstruct": (*_ALL, _KEPT),
}

DIFFERENCES: Mapping[str, tuple[OptionDifference, ...]] = {**RUN, **DEBUG, **CONVERT, **INSPECT, **CHECK, **SURGEON}
"""The rows of each command. In all others that both tools have, every option is the same."""
