"""Rows of ``run``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

_RUN = (
    shared.TENSORFLOW,
    *shared.LOADING,
    shared.LOADER_MODULE,
    *shared.TENSORRT,
    shared.LOAD_TACTICS,
    shared.SAVE_TACTICS,
    shared.ONE_WEIGHTS_FILE,
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
