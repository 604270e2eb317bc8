"""Options that name engines, and the settings of ``--onnxrt``; see ``tensorrt`` for those of ``--trt``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import tensorrt, types
from biopsy.cli.arguments.packages import of_packages, packages_of
from biopsy.similar_names import did_you_mean

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
    """The engines asked for, in order, with the settings of --onnxrt and --trt.

    Where no engine is named, settings name theirs: ``--fp16`` alone is TensorRT. Raises UsageError if there is no
    engine, or a setting that none of those named has.
    """
    from biopsy.engines.registry import EngineSpec, parse_spec

    chosen = args.engines or list(settings_given(args))
    if not chosen:
        raise errors.UsageError(
            "no engine is named to run the model",
            next_steps=["--onnxrt", "--engine NAME    for any engine that 'biopsy doctor' shows"],
        )
    for flag, options in settings_given(args).items():
        if flag not in chosen:
            raise errors.UsageError(
                f"{options[0]} is a setting of {flag}, and {flag} is not among the engines",
                next_steps=[f"{flag} {options[0]} ...", "with --engine, write settings after the name, as in "
                            f"--engine {_EXAMPLES[flag]}", f"or leave out {' '.join(options)}"],
            )  # fmt: skip
    plain = {
        PLAIN_ONNXRT: EngineSpec("onnxrt", _onnxrt_settings(args)),
        tensorrt.PLAIN: EngineSpec("trt", tensorrt.settings(args)),
    }
    return [plain[text] if text in plain else parse_spec(text) for text in chosen]


_EXAMPLES = {PLAIN_ONNXRT: "onnxrt:threads=1", tensorrt.PLAIN: "trt:fp16"}


def settings_given(args: argparse.Namespace) -> dict[str, list[str]]:
    """The settings that were given, as they are typed, by the flag of the engine that has them."""
    words = {"--providers": args.providers, "--optimization-level": args.optimization_level, "--threads": args.threads}
    found = {
        PLAIN_ONNXRT: [option for option, value in words.items() if value is not None],
        tensorrt.PLAIN: tensorrt.given(args),
    }
    return {flag: options for flag, options in found.items() if options}


def only_engine(args: argparse.Namespace) -> EngineSpec | None:
    """The engine of a command that takes one: named, or meant by a setting; None where neither is given.

    Raises UsageError for several, and as ``engine_specs``.
    """
    if not (args.engines or settings_given(args)):
        return None
    specs = engine_specs(args)
    if len(specs) > 1:
        raise errors.UsageError(f"{' and '.join(spec.text for spec in specs)}: this command takes one engine only")
    return specs[0]


def specs_to_run(args: argparse.Namespace) -> list[EngineSpec]:
    """The engines asked for, else one by default, from the releases that ``--package`` asks for. Raises UsageError."""
    if args.engines or settings_given(args):
        return of_packages(engine_specs(args), args)
    return of_packages([_default_of(args)], args)


def _default_of(args: argparse.Namespace) -> EngineSpec:
    """The engine where none is named: that of a package that is, else ``default_engine``."""
    from biopsy.engines.registry import EngineSpec, engines_of_distribution

    for package in packages_of(args):
        names = engines_of_distribution(package.name)
        if names:
            return EngineSpec(names[0])
    return default_engine(runs=not args.build_only)


def default_engine(*, runs: bool) -> EngineSpec:
    """The engine where none is named: TensorRT if it works here, else ONNX Runtime.

    TensorRT needs a GPU for a model that ``runs``.
    """
    from biopsy.engines.registry import EngineSpec, installed

    (found,) = installed("trt")
    works = found.version is not None and (bool(found.devices) or not runs)
    return EngineSpec("trt" if works else "onnxrt")


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
        raise errors.UsageError(
            f"it must be one of {', '.join(_LEVELS)}", next_steps=did_you_mean(text, [*_LEVELS, *_ORT_LEVELS], most=1)
        )
    return level
