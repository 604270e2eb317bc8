"""Groups of options that several commands have: engines, inputs, comparing. Values are parsed when they are used.

Nothing here imports NumPy: every ``--help`` and every parsed command line passes through this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from biopsy import errors
from biopsy.cli.arguments import file_kinds, tensorrt

if TYPE_CHECKING:
    from biopsy.engines.registry import EngineSpec

PLAIN_ONNXRT = "--onnxrt"
"""What stands in ``args.engines`` for the flag, so that --providers and its like apply to it alone."""

_ORT_LEVELS = {
    "ORT_DISABLE_ALL": "none",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_LAYOUT": "layout",
    "ORT_ENABLE_ALL": "all",
}
_LEVELS = tuple(_ORT_LEVELS.values())


_SEVERAL = "engines (repeatable); the first is what the others are compared with"


def add_engines(parser: argparse.ArgumentParser, title: str = _SEVERAL) -> None:
    """``--onnxrt``, ``--engine`` and the others, into ``args.engines`` in the order of the command line."""
    group = parser.add_argument_group(title)
    flag = {"action": "append_const", "dest": "engines"}
    group.add_argument("--onnxrt", **flag, const=PLAIN_ONNXRT, help="ONNX Runtime")  # type: ignore[arg-type]
    group.add_argument("--reference", **flag, const="reference", help="the reference evaluator of onnx")  # type: ignore[arg-type]
    group.add_argument(
        "--reference:float64",
        **flag,  # type: ignore[arg-type]
        const="reference:float64",
        help="the same with everything computed in float64, whatever the model declares",
    )
    group.add_argument("--openvino", **flag, const="openvino", help="OpenVINO, in float32")  # type: ignore[arg-type]
    group.add_argument("--trt", **flag, const=tensorrt.PLAIN, help="TensorRT, or TensorRT for RTX")  # type: ignore[arg-type]
    group.add_argument(
        "--engine",
        action="append",
        dest="engines",
        metavar="NAME[:key=value,...]",
        help="any engine with its options, such as onnxrt:optimization=none; 'biopsy doctor NAME' lists them",
    )
    group = parser.add_argument_group("settings of --onnxrt (with --engine, write them after the name)")
    group.add_argument(
        "--providers",
        "--execution-providers",
        nargs="+",
        metavar="NAME",
        help="execution providers, best first, such as cuda cpu (default: cpu)",
    )
    group.add_argument(
        "--optimization-level",
        "--graph-optimization-level",
        type=_optimization_level,
        metavar="LEVEL",
        help=f"{', '.join(_LEVELS)}, or ONNX Runtime's own names such as ORT_DISABLE_ALL (default: all)",
    )
    group.add_argument("--threads", type=count, metavar="N", help="threads within an operator; 0: the engine's choice")


def engine_specs(args: argparse.Namespace) -> list[EngineSpec]:
    """The engines asked for, in order, with the settings of --onnxrt and --trt. Raises UsageError if there is none."""
    from biopsy.engines.registry import EngineSpec, parse_spec

    if not args.engines:
        raise errors.UsageError(
            "no engine is given to run the model in",
            next_steps=["--onnxrt", "--engine NAME    for any engine that 'biopsy doctor' shows"],
        )
    plain = {
        PLAIN_ONNXRT: EngineSpec("onnxrt", _onnxrt_settings(args)),
        tensorrt.PLAIN: EngineSpec("trt", tensorrt.settings(args)),
    }
    return [plain[text] if text in plain else parse_spec(text) for text in args.engines]


def ignored_settings(args: argparse.Namespace) -> list[str]:
    """Settings of --onnxrt or --trt that were given although there is no such flag to apply them to, in words."""
    given = {"--providers": args.providers, "--optimization-level": args.optimization_level, "--threads": args.threads}
    found = []
    if PLAIN_ONNXRT not in args.engines:
        found += [f"{option} is ignored: it is a setting of --onnxrt" for option, value in given.items() if value]
    if tensorrt.PLAIN not in args.engines:
        found += [f"{name} is ignored: it is a setting of --trt" for name in tensorrt.settings(args)]
    return found


def _onnxrt_settings(args: argparse.Namespace) -> Mapping[str, str]:
    settings = {}
    if args.providers is not None:
        settings["providers"] = "+".join(args.providers)
    if args.optimization_level is not None:
        settings["optimization"] = args.optimization_level
    if args.threads is not None:
        settings["threads"] = str(args.threads)
    return settings


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, its weights' folder, and the outputs to mark."""
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--onnx-outputs",
        "--outputs",
        nargs="+",
        metavar="NAME",
        help="tensors to return instead of the model's outputs, patterns allowed; 'mark all': every tensor too",
    )
    add_weights_folder(group)


def add_weights_folder(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Where to find external weights, into ``args.external_data_dir``."""
    parser.add_argument(
        "--external-data-dir",
        "--load-external-data",
        "--ext",
        type=file_kinds.FOLDER_READ,
        metavar="DIR",
        help="where external weights stand (default: the model's folder)",
    )


def add_weights_file(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Whether to write weights into a file of their own: see ``weights_file``."""
    parser.add_argument(
        "--save-external-data",
        "--external-data-path",
        nargs="?",
        const="",
        metavar="FILE",
        help="put weights into a file of this name beside the output (default name: OUTPUT.data)",
    )


def weights_file(args: argparse.Namespace, output: Path) -> str | None:
    """The name of the file for weights beside ``output``; None if they go inside."""
    from biopsy.model.weights_file import default_name

    asked: str | None = args.save_external_data
    return default_name(output) if asked == "" else asked


def derived_weights(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights beside ``args.output``, by ``weights_file``, as one that is written."""
    name = None if args.output is None else weights_file(args, args.output)
    return {"--save-external-data": (args.output.with_name(name) if name else None, file_kinds.WRITTEN)}


def marked_outputs(args: argparse.Namespace) -> Literal["all"] | Sequence[str] | None:
    """What --onnx-outputs asks for."""
    names: Sequence[str] | None = args.onnx_outputs
    return "all" if names in (["mark", "all"], ["*"]) else names


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Where inputs come from, and where they go."""
    group = parser.add_argument_group("inputs: random ones, the same for the same seed, unless they are loaded")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--load-inputs",
        "--load-input-data",
        nargs="+",
        type=file_kinds.READ,
        metavar="FILE",
        help="inputs saved before; the iterations of several files follow one another; tensors that the model "
        "does not take are ignored",
    )
    source.add_argument(
        "--data-loader-script",
        type=file_kinds.READ_SCRIPT,
        metavar="FILE.py[:function]",
        help="a Python function that yields dictionaries of arrays (default: load_data)",
    )
    group.add_argument("--iterations", "--iters", type=positive, default=1, metavar="N", help="random inputs to make")
    group.add_argument("--seed", type=count, default=1, metavar="N", help="seed of random inputs (default: 1)")
    group.add_argument(
        "--val-range",
        nargs="+",
        metavar="[NAME:][lo,hi]",
        help="range of random values, for all inputs or one of them (default: [0,1])",
    )
    group.add_argument(
        "--input-shapes",
        "--inputs",
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        help="shapes of random inputs, where the model leaves them open",
    )
    group.add_argument(
        "--input-symbols",
        nargs="+",
        metavar="NAME=SIZE",
        help="sizes of open dimensions of random inputs, by their names in the model",
    )
    group.add_argument(
        "--save-inputs",
        "--save-input-data",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help=f"save the inputs used: {_FORMATS}",
    )


_FORMATS = ".json (as Polygraphy), .npz, .safetensors, or a folder"


def add_comparing(parser: argparse.ArgumentParser) -> None:
    """Golden values, tolerances and what of the error is held against them."""
    group = parser.add_argument_group("outputs and comparing")
    group.add_argument(
        "--save-outputs",
        "--save-results",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help=f"save what every engine gave: {_FORMATS}",
    )
    group.add_argument(
        "--load-outputs",
        "--load-results",
        nargs="+",
        type=file_kinds.READ,
        metavar="FILE",
        help="golden values saved before; every engine, the first one too, is compared with all of them",
    )
    add_tolerances(group)
    group.add_argument("--validate", action="store_true", help="fail if an engine gives NaN or infinity")
    group.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    group.add_argument("--warm-up", type=count, default=0, metavar="N", help="runs before the first that is timed")


def add_tolerances(group: argparse._ArgumentGroup) -> None:
    """The tolerances, and what of the error is held against them."""
    tolerance = "for all outputs or one of them (default: 1e-5"
    group.add_argument(
        "--atol",
        "--abs-tol",
        "--absolute-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        help=f"greatest absolute difference allowed, {tolerance}; 0 for integers and booleans)",
    )
    group.add_argument(
        "--rtol",
        "--rel-tol",
        "--relative-tolerance",
        nargs="+",
        metavar="[OUTPUT:]VALUE",
        help=f"greatest difference allowed relative to the expected value, {tolerance}; for integers only by name)",
    )
    group.add_argument(
        "--check-error-stat",
        nargs="+",
        metavar="[OUTPUT:]STAT",
        help="what is held against the tolerances: elemwise, max, mean, median or quantile (default: elemwise)",
    )
    group.add_argument(
        "--error-quantile",
        nargs="+",
        metavar="[OUTPUT:]Q",
        help="which quantile 'quantile' means, 0 to 1 (default: 0.99)",
    )


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("must be a whole number, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(text)


def _optimization_level(text: str) -> str:
    level = _ORT_LEVELS.get(text.upper(), text)
    if level not in _LEVELS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_LEVELS)}")
    return level
