"""Rows of ``debug ...``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

_NOT_RUN = "debug build runs nothing itself: inputs belong to the check"
_BUILD = (
    *shared.LOADING,
    shared.LOADER_MODULE,
    *shared.TENSORRT,
    shared.LOAD_TACTICS,
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
    *shared.LOADING,
    shared.LOADER_MODULE,
    *shared.TENSORRT,
    shared.LOAD_TACTICS,
    shared.SAVE_TACTICS,
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
    *shared.NOT_AS_IT_IS,
    shared.LOADER_MODULE,
    shared.ONE_WEIGHTS_FILE,
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
