"""Options that name engines, and the settings of ``--onnxrt``; see ``tensorrt`` for those of ``--trt``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import tensorrt, types

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


_SEVERAL = "engines (repeatable); the others are compared with the first"


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
        help="the same, computing everything in float64, whatever the model declares",
    )
    group.add_argument("--openvino", **flag, const="openvino", help="OpenVINO, in float32")  # type: ignore[arg-type]
    group.add_argument("--trt", **flag, const=tensorrt.PLAIN, help="TensorRT, or TensorRT for RTX")  # type: ignore[arg-type]
    group.add_argument(
        "--engine",
        action="append",
        dest="engines",
        metavar="NAME[:key=value,...]",
        help="any engine, with its options, as in onnxrt:optimization=none; 'biopsy doctor NAME' lists them",
    )
    group = parser.add_argument_group("settings of --onnxrt (with --engine, write them after the name)")
    group.add_argument(
        "--providers",
        "--execution-providers",
        nargs="+",
        metavar="NAME",
        help="execution providers, most preferred first, such as cuda cpu (default: cpu)",
    )
    group.add_argument(
        "--optimization-level",
        "--graph-optimization-level",
        type=_optimization_level,
        metavar="LEVEL",
        help=f"{', '.join(_LEVELS)}, or ONNX Runtime's own names, such as ORT_DISABLE_ALL (default: all)",
    )
    group.add_argument(
        "--threads", type=types.count, metavar="N", help="threads within an operator; 0 lets the engine choose"
    )


def engine_specs(args: argparse.Namespace) -> list[EngineSpec]:
    """The engines asked for, in order, with the settings of --onnxrt and --trt. Raises UsageError if there is none."""
    from biopsy.engines.registry import EngineSpec, parse_spec

    if not args.engines:
        raise errors.UsageError(
            "no engine is named to run the model",
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


def _optimization_level(text: str) -> str:
    level = _ORT_LEVELS.get(text.upper(), text)
    if level not in _LEVELS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_LEVELS)}")
    return level
