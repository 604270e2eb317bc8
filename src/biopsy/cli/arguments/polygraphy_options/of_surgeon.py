"""Rows of ``surgeon ...``."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference
from biopsy.cli.arguments.polygraphy_options.of_check import CHECK
from biopsy.cli.arguments.polygraphy_options.of_convert import CONVERT
from biopsy.cli.arguments.polygraphy_options.of_debug import DEBUG
from biopsy.cli.arguments.polygraphy_options.of_inspect import INSPECT
from biopsy.cli.arguments.polygraphy_options.of_run import RUN

_TO_FP16 = shared.TO_FP16._replace(why="surgeon commands change what they name, and nothing else")
_ALL = (_TO_FP16, shared.ONE_WEIGHTS_FILE)

_DRAWN = OptionDifference(
    shared.DRAWS, "differs", "says the inputs of the run that --force-fallback-shape-inference takes shapes from: one"
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
    shared.LOADER_MODULE,
    _DRAWN,
)

_SANITIZE = (
    *_ALL,
    _KEPT,
    _BY_ONNX,
    shared.LOADER_MODULE,
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
