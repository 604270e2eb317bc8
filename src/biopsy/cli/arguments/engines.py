"""Options that name engines, the settings of ``--onnxrt``, the options of ``--trt`` as users of TensorRT type them,
and ``--package``, ``--with`` and ``--python``: the releases that engines are run from.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.engines.base import RELEASE_SETTINGS, Engine
from biopsy.engines.registry import (
    EngineSpec,
    engines_of_distribution,
    find_class,
    installed,
    parse_spec,
    release_settings,
)
from biopsy.engines.trt.settings import OPTIONS
from biopsy.processes.environments.requirements import normalized
from biopsy.text import did_you_mean, printable

PLAIN = "--trt"
"""What stands in ``args.engines`` for the flag, so that the options here apply to it alone."""


_SWITCHES = {
    "--fp16": ("fp16", "allow float16 (TensorRT 10 only: later versions use the types of the model)"),
    "--bf16": ("bf16", "allow bfloat16 (TensorRT 10 only)"),
    "--fp8": ("fp8", "allow 8-bit floats (TensorRT 10 only)"),
    "--int8": ("int8", "allow int8 (TensorRT 10 only)"),
    "--tf32": ("tf32", "allow TF32 for float32"),
    "--strongly-typed": ("strongly_typed", "use the types of the model (later versions than TensorRT 10 always do)"),
}
"""Flag -> its setting and help."""

_BUILDER_FLAGS = {
    "--sparse-weights": "sparse_weights",
    "--version-compatible": "version_compatible",
    "--refittable": "refit",
    "--strip-plan": "strip_plan",
    "--direct-io": "direct_io",
    "--weight-streaming": "weight_streaming",
    "--error-on-timing-cache-miss": "error_on_timing_cache_miss",
    "--disable-compilation-cache": "disable_compilation_cache",
    "--exclude-lean-runtime": "exclude_lean_runtime",
    "--trt-safety-restricted": "safety_scope",
    "--allow-gpu-fallback": "gpu_fallback",
}
"""Flag -> TensorRT's builder flag."""

_ONE, _MANY = False, True
_FILES = {
    "load_timing_cache": types.READ_TEXT,
    "save_timing_cache": types.written_over(
        "trt_load_timing_cache", "artifacts", textual=True
    ),  # one cache that grows is usual, and so is one that each build leaves
    "plugins": types.READ_TEXT,
}
"""Settings that name files."""

_WORDS = (
    (
        ("--trt-min-shapes",),
        "min_shapes",
        "NAME:[d0,...]",
        _MANY,
        "smallest input shapes; repeat this, --trt-opt-shapes and --trt-max-shapes for several optimization profiles: "
        "the n-th of each belong together",
    ),
    (("--trt-opt-shapes",), "opt_shapes", "NAME:[d0,...]", _MANY, "input shapes to optimize for"),
    (("--trt-max-shapes",), "max_shapes", "NAME:[d0,...]", _MANY, "largest input shapes"),
    (
        ("--trt-outputs",),
        "outputs",
        "NAME",
        _MANY,
        "tensors of TensorRT's network to return; 'mark all' returns every one",
    ),
    (("--trt-exclude-outputs",), "exclude_outputs", "NAME", _MANY, "do not return these of them"),
    (
        ("--pool-limit", "--memory-pool-limit"),
        "pool",
        "POOL:SIZE",
        _MANY,
        "limits of memory pools, such as workspace:16M",
    ),
    (("--workspace",), "pool.workspace", "SIZE", _ONE, "the limit of the workspace pool"),
    (("--load-timing-cache",), "load_timing_cache", "FILE", _ONE, "start with this timing cache"),
    (("--save-timing-cache",), "save_timing_cache", "FILE", _ONE, "write the timing cache to this file"),
    (("--builder-optimization-level",), "optimization", "LEVEL", _ONE, "from 0 to 5"),
    (("--hardware-compatibility-level",), "hardware_compatibility", "LEVEL", _ONE, "such as ampere_plus"),
    (("--profiling-verbosity",), "profiling_verbosity", "LEVEL", _ONE, "such as detailed"),
    (("--tiling-optimization-level",), "tiling_optimization", "LEVEL", _ONE, "such as moderate"),
    (("--runtime-platform",), "runtime_platform", "NAME", _ONE, "such as windows_amd64"),
    (("--max-aux-streams",), "max_aux_streams", "N", _ONE, "most auxiliary streams"),
    (("--tactic-sources",), "tactic_sources", "NAME", _MANY, "use only these tactic sources"),
    (("--onnx-flags",), "onnx_flags", "NAME", _MANY, "flags of the ONNX parser, such as native_instancenorm"),
    (("--plugins",), "plugins", "FILE", _MANY, "load these plug-in libraries"),
)
"""Options with values: spellings, the setting they stand for, what a value is, whether there may be several, help."""


_OF_PROFILES = ("min_shapes", "opt_shapes", "max_shapes")
"""Settings that stand once for each optimization profile."""


def _checked(setting: str) -> Callable[[str], str]:
    """A type that takes what the engine takes, so that nothing impossible is found out late, or never."""

    def value(text: str) -> str:

        name, _, part = text.partition(":") if setting == "pool" else ("", "", text)
        stem = setting.partition(".")[0]
        option = next(option for option in OPTIONS if option.stem == stem)
        try:
            if setting == "pool" and not name:
                raise ValueError("a pool and a size are wanted, such as workspace:16M")
            option.value_of(part)
        except ValueError as error:
            raise errors.UsageError(f"{text}: {error}") from error
        return text

    return value


def add(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add the options of ``--trt``, except those of these settings."""
    group = parser.add_argument_group("settings of --trt (with --engine, write them after the name)")
    for flag, (setting, text) in _SWITCHES.items():
        if setting not in without:
            group.add_argument(flag, dest=f"trt_{setting}", action="store_true", help=text)
    for names, setting, metavar, many, text in (words for words in _WORDS if words[1] not in without):
        nargs = "+" if many else None
        kind = _FILES.get(setting) or _checked(setting)
        action = "append" if setting in _OF_PROFILES else "store"
        group.add_argument(
            *names, dest=_dest(setting), type=kind, action=action, metavar=metavar, nargs=nargs, help=text
        )
    for flag, name in _BUILDER_FLAGS.items():
        group.add_argument(
            flag, dest="trt_flags", action="append_const", const=name, help=f"builder flag {name.upper()}"
        )


def given(args: argparse.Namespace) -> list[str]:
    """The options of ``--trt`` that were given, as they are typed; none for a command without these options."""
    switches = {flag: getattr(args, f"trt_{setting}", False) for flag, (setting, _) in _SWITCHES.items()}
    words = {names[0]: getattr(args, _dest(setting), None) is not None for names, setting, _, _, _ in _WORDS}
    flags = {flag: name in (getattr(args, "trt_flags", None) or ()) for flag, name in _BUILDER_FLAGS.items()}
    return [option for option, is_given in {**switches, **words, **flags}.items() if is_given]


def _dest(setting: str) -> str:
    return f"trt_{setting.replace('.', '_')}"


def settings(args: argparse.Namespace) -> dict[str, str | None]:
    """The settings of the engine trt that were given; none for a command without these options."""
    found: dict[str, str | None] = {}
    for setting, _ in _SWITCHES.values():
        if getattr(args, f"trt_{setting}", False):
            found[setting] = None
    for _, setting, _, many, _ in _WORDS:
        value = getattr(args, _dest(setting), None)
        if value is None:
            continue
        if setting == "pool":
            found |= {f"pool.{pool}": limit for pool, _, limit in (word.partition(":") for word in value)}
        elif setting in _OF_PROFILES:
            found[setting] = "/".join("+".join(words) for words in value)
        else:
            found[setting] = "+".join(value) if many else value
    flags: Sequence[str] | None = getattr(args, "trt_flags", None)
    if flags:
        found["flags"] = "+".join(flags)
    if found.get("outputs") == "mark+all":
        found["outputs"] = "all"
    return found


# Options that name engines, and the settings of ``--onnxrt``; see ``tensorrt`` for those of ``--trt``.

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
    group.add_argument("--trt", **flag, const=PLAIN, help="TensorRT, or TensorRT for RTX")  # type: ignore[arg-type]
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
        PLAIN: EngineSpec("trt", settings(args)),
    }
    return [plain[text] if text in plain else parse_spec(text) for text in chosen]


_EXAMPLES = {PLAIN_ONNXRT: "onnxrt:threads=1", PLAIN: "trt:fp16"}


def settings_given(args: argparse.Namespace) -> dict[str, list[str]]:
    """The settings that were given, as they are typed, by the flag of the engine that has them."""
    words = {"--providers": args.providers, "--optimization-level": args.optimization_level, "--threads": args.threads}
    found = {
        PLAIN_ONNXRT: [option for option, value in words.items() if value is not None],
        PLAIN: given(args),
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
    for package in packages_of(args):
        names = engines_of_distribution(package.name)
        if names:
            return EngineSpec(names[0])
    return default_engine(runs=not args.build_only)


def default_engine(*, runs: bool) -> EngineSpec:
    """The engine where none is named: TensorRT if it works here, else ONNX Runtime.

    TensorRT needs a GPU for a model that ``runs``.
    """
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


# ``--package``, ``--with`` and ``--python``: the releases that engines are run from, for those that name none.

ALIKE = 0.7
"""How alike the name of another package must be for a question whether it was meant."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*==\s*(?P<version>[0-9A-Za-z][0-9A-Za-z.!+_-]*)")


class PinnedPackage(NamedTuple):
    """A release that was asked for, by the distribution's name on the package index."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.name}=={self.version}"


def add_packages(parser: argparse.ArgumentParser, title: str, meaning: str) -> None:
    """Add the three options; ``meaning`` says for what the releases are taken."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--package",
        dest="packages",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help=f"{meaning}, such as onnxruntime==1.20.1 (repeatable): installed into an environment of its own, once",
    )
    add_surroundings(group)


def add_surroundings(group: argparse._ArgumentGroup) -> None:
    """``--with`` and ``--python``: what a release is installed beside, and for which Python."""
    group.add_argument(
        "--with",
        dest="beside",
        nargs="+",
        action="extend",
        default=[],
        metavar="REQUIREMENT",
        help="what is installed beside it, such as 'numpy<2'",
    )
    group.add_argument(
        "--python", metavar="PYTHON", help="a version of Python, or its path (default: the one that runs biopsy)"
    )


def packages_of(args: argparse.Namespace) -> list[PinnedPackage]:
    """The releases asked for. Raises UsageError for what is none, or for a package that is asked for twice."""
    found = []
    for text in getattr(args, "packages", ()):
        pinned = _PINNED.fullmatch(text.strip())
        if pinned is None:
            name = _NAME.match(text.strip())
            raise errors.UsageError(
                f"--package {printable(text)} is not NAME==VERSION",
                next_steps=[f"--package {name[0]}==VERSION" if name else "--package onnxruntime==1.20.1"],
            )
        found.append(PinnedPackage(normalized(pinned["name"]), pinned["version"]))
    for option, value in (("--with", getattr(args, "beside", ())), ("--python", getattr(args, "python", None))):
        if value and not found:
            raise errors.UsageError(f"{option} belongs to --package, which is missing", next_steps=[
                f"--package onnxruntime==1.20.1 {option} ..."
            ])  # fmt: skip
    names = [package.name for package in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise errors.UsageError(
            f"--package {twice} is given twice",
            next_steps=["--engine onnxrt:release=1.20.1 --engine onnxrt:release=1.23.2    compares two releases"],
        )
    return found


def of_packages(specs: Sequence[EngineSpec], args: argparse.Namespace) -> list[EngineSpec]:
    """The engines, each from the release that was asked for of its package; one that names a release keeps that.

    Raises UsageError for a package that is that of no engine.
    """
    found = list(specs)
    for package in packages_of(args):
        found = _of_package(found, package, args)
    return found


def _of_package(specs: Sequence[EngineSpec], package: PinnedPackage, args: argparse.Namespace) -> list[EngineSpec]:

    names = engines_of_distribution(package.name)
    if not any(spec.name in names for spec in specs):
        raise _not_used(package, names, specs)
    asked = release_settings(names[0], package.name, package.version, beside=args.beside, python=args.python)
    return [
        EngineSpec(spec.name, {**asked, **spec.settings})
        if spec.name in names and not spec.settings.keys() & {*RELEASE_SETTINGS}
        else spec
        for spec in specs
    ]


def _not_used(package: PinnedPackage, names: Sequence[str], specs: Sequence[EngineSpec]) -> errors.UsageError:

    shown = ", ".join(dict.fromkeys(parse_spec(spec.text).name for spec in specs))
    if names:
        return errors.UsageError(
            f"--package {package.text} is of the engine {names[0]}, and what runs here is {shown}",
            next_steps=[f"--engine {names[0]}    or leave out --package {package.text}"],
        )
    return errors.UsageError(
        f"--package {package.text} is of no engine that runs here: {shown}",
        next_steps=[
            *did_you_mean(package.name, distributions_of(specs), cutoff=ALIKE),
            f"--package ... --with {package.text}    installs it beside the release of an engine",
        ],
    )


def distributions_of(specs: Sequence[EngineSpec]) -> list[str]:
    """The packages that engines are usually installed from; those of an engine without releases are none."""
    return list(dict.fromkeys(name for spec in specs for name in find_class(spec.name).distributions[:1]))


# Installing the releases that engines are run from, before anything else is done, and shown while it lasts.


def install(engines: Iterable[Engine | type[Engine]], console: Console) -> None:
    """Have the environments of all engines that are run from another release. Raises CannotInstall, UsageError."""
    elsewhere = [engine.imports for engine in engines if not engine.imports.is_here]
    if not elsewhere:
        return
    from biopsy.cli.progress import Progress

    with Progress(console, None) as progress:
        for imports in elsewhere:
            imports.install(progress)
