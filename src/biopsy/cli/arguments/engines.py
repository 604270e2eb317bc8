"""Options that choose engines, their settings and their releases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, several, switch
from biopsy.cli.console import Console
from biopsy.text import did_you_mean, normalized, printable

if TYPE_CHECKING:
    from biopsy.engines.base import Engine
    from biopsy.engines.registry import EngineSpec

PLAIN_ONNXRT = "--onnxrt"
PLAIN = "--trt"
"""Values of ``args.engines`` for these flags. Options such as --providers apply to engines named by the flag alone."""

_ORT_LEVELS = {
    "ORT_DISABLE_ALL": "none",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_LAYOUT": "layout",
    "ORT_ENABLE_ALL": "all",
}
_LEVELS = tuple(_ORT_LEVELS.values())


def _optimization_level(text: str) -> str:
    level = _ORT_LEVELS.get(text.upper(), text)
    if level not in _LEVELS:
        raise errors.UsageError(
            f"it must be one of {', '.join(_LEVELS)}", next_steps=did_you_mean(text, [*_LEVELS, *_ORT_LEVELS], most=1)
        )
    return level


_FLAGS = {
    "--onnxrt": (PLAIN_ONNXRT, "ONNX Runtime"),
    "--reference": ("reference", "the reference evaluator of onnx"),
    "--reference:float64": (
        "reference:float64",
        "the same, computing everything in float64, whatever the model declares",
    ),
    "--openvino": ("openvino", "OpenVINO, in float32"),
    "--trt": (PLAIN, "TensorRT, or TensorRT for RTX"),
}
"""Flag -> its value in ``args.engines``, and its help."""


_WRITTEN = "(with --engine, write them after the name)"


class OnnxrtOptions(Options, title=f"settings of --onnxrt {_WRITTEN}"):
    """The settings of ``--onnxrt``."""

    providers: Sequence[str] | None = several(
        "--providers --execution-providers",
        metavar="NAME",
        meaning="execution providers, most preferred first, such as cuda cpu (default: cpu)",
    )
    optimization_level: str | None = option(
        "--optimization-level --graph-optimization-level",
        type=_optimization_level,
        metavar="LEVEL",
        meaning=f"{', '.join(_LEVELS)}, or ONNX Runtime's own names, such as ORT_DISABLE_ALL (default: all)",
    )
    threads: int | None = option(
        "--threads", type=types.count, meaning="threads within an operator; 0 lets the engine choose"
    )

    def onnxrt_settings(self) -> dict[str, str]:
        """The settings of the engine onnxrt that were given."""
        providers = None if self.providers is None else "+".join(self.providers)
        given = {"providers": providers, "optimization": self.optimization_level, "threads": self.threads}
        return {name: str(value) for name, value in given.items() if value is not None}


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


def _checked(setting: str) -> Callable[[str], str]:
    """An argparse type that accepts only values which the engine accepts for a setting."""

    def value(text: str) -> str:
        from biopsy.engines.trt_settings import OPTIONS

        name, _, part = text.partition(":") if setting == "pool" else ("", "", text)
        try:
            if setting == "pool" and not name:
                raise ValueError("a pool and a size are wanted, such as workspace:16M")
            next(option for option in OPTIONS if option.stem == setting.partition(".")[0]).value_of(part)
        except ValueError as error:
            raise errors.UsageError(f"{text}: {error}") from error
        return text

    return value


def _setting(*spellings: str, of: str = "", metavar: str, meaning: str, **settings: Any) -> Any:
    """A field for a setting of the engine trt: ``of``, or by default the one named like the first spelling."""
    name = of or spellings[0].removeprefix("--trt").strip("-").replace("-", "_")
    return option(*spellings, meaning=meaning, **{"type": _checked(name), "metavar": metavar, **settings})


_settings = partial(_setting, nargs="+")
_shapes = partial(_settings, metavar="NAME:[d0,...]", action="append")
"""Shapes of inputs; the option is repeated for each optimization profile."""


class PrecisionSettings(Options):
    """The types that TensorRT may compute in."""

    trt_fp16: bool = switch(
        "--fp16", meaning="allow float16 (TensorRT 10 only: later versions use the types of the model)"
    )
    trt_bf16: bool = switch("--bf16", meaning="allow bfloat16 (TensorRT 10 only)")
    trt_fp8: bool = switch("--fp8", meaning="allow 8-bit floats (TensorRT 10 only)")
    trt_int8: bool = switch("--int8", meaning="allow int8 (TensorRT 10 only)")
    trt_tf32: bool = switch("--tf32", meaning="allow TF32 for float32")
    trt_strongly_typed: bool = switch(
        "--strongly-typed", meaning="use the types of the model (later versions than TensorRT 10 always do)"
    )


class NetworkSettings(Options):
    """Shapes and outputs of the network, and memory for the build."""

    trt_min_shapes: Sequence[Sequence[str]] | None = _shapes(
        "--trt-min-shapes",
        meaning="smallest input shapes; repeat this, --trt-opt-shapes and --trt-max-shapes for several optimization "
        "profiles: the n-th of each belong together",
    )
    trt_opt_shapes: Sequence[Sequence[str]] | None = _shapes("--trt-opt-shapes", meaning="input shapes to optimize for")
    trt_max_shapes: Sequence[Sequence[str]] | None = _shapes("--trt-max-shapes", meaning="largest input shapes")
    trt_outputs: Sequence[str] | None = _settings(
        "--trt-outputs",
        metavar="NAME",
        meaning="tensors of TensorRT's network to return; 'mark all' returns every one",
    )
    trt_exclude_outputs: Sequence[str] | None = _settings(
        "--trt-exclude-outputs", metavar="NAME", meaning="do not return these of them"
    )
    trt_pool: Sequence[str] | None = _settings(
        "--pool-limit --memory-pool-limit",
        of="pool",
        metavar="POOL:SIZE",
        meaning="limits of memory pools, such as workspace:16M",
    )
    trt_pool_workspace: str | None = _setting(
        "--workspace", of="pool.workspace", metavar="SIZE", meaning="the limit of the workspace pool"
    )


class BuilderSettings(Options):
    """Further settings of the build."""

    trt_load_timing_cache: str | None = _setting(
        "--load-timing-cache", metavar="FILE", type=types.READ_TEXT, meaning="start with this timing cache"
    )
    trt_save_timing_cache: str | None = _setting(
        "--save-timing-cache",
        metavar="FILE",
        type=types.written_over("trt_load_timing_cache", "artifacts", textual=True),
        meaning="write the timing cache to this file",
    )  # one cache that grows is usual, and so is one that each build leaves
    trt_optimization: str | None = _setting(
        "--builder-optimization-level", of="optimization", metavar="LEVEL", meaning="from 0 to 5"
    )
    trt_hardware_compatibility: str | None = _setting(
        "--hardware-compatibility-level", of="hardware_compatibility", metavar="LEVEL", meaning="such as ampere_plus"
    )
    trt_profiling_verbosity: str | None = _setting("--profiling-verbosity", metavar="LEVEL", meaning="such as detailed")
    trt_tiling_optimization: str | None = _setting(
        "--tiling-optimization-level", of="tiling_optimization", metavar="LEVEL", meaning="such as moderate"
    )
    trt_runtime_platform: str | None = _setting("--runtime-platform", metavar="NAME", meaning="such as windows_amd64")
    trt_max_aux_streams: str | None = _setting("--max-aux-streams", metavar="N", meaning="most auxiliary streams")
    trt_tactic_sources: Sequence[str] | None = _settings(
        "--tactic-sources", metavar="NAME", meaning="use only these tactic sources"
    )
    trt_onnx_flags: Sequence[str] | None = _settings(
        "--onnx-flags", metavar="NAME", meaning="flags of the ONNX parser, such as native_instancenorm"
    )
    trt_plugins: Sequence[str] | None = _settings(
        "--plugins", metavar="FILE", type=types.READ_TEXT, meaning="load these plug-in libraries"
    )


class TensorrtOptions(PrecisionSettings, NetworkSettings, BuilderSettings, title=f"settings of --trt {_WRITTEN}"):
    """The settings of ``--trt``. The name of a field is that of a setting, with ``trt_`` before it."""

    trt_flags: Sequence[str] | None = option(
        action="append",
        meaning="",
        flags={flag: (name, f"builder flag {name.upper()}") for flag, name in _BUILDER_FLAGS.items()},
    )

    def options_given(self) -> list[str]:
        """The options of ``--trt`` that were given, as they are typed."""
        options = self.given(TensorrtOptions.declared)
        return [*options, *(flag for flag, name in _BUILDER_FLAGS.items() if name in (self.trt_flags or ()))]

    def settings(self) -> dict[str, str | None]:
        """The settings of the engine trt that were given."""
        settings: dict[str, str | None] = {}
        for field in TensorrtOptions.declared:
            setting, value = field.removeprefix("trt_"), getattr(self, field)
            if value is None or value is False:
                continue
            if setting == "pool":
                settings |= {f"pool.{pool}": limit for pool, _, limit in (word.partition(":") for word in value)}
            elif setting in ("min_shapes", "opt_shapes", "max_shapes"):
                settings[setting] = "/".join("+".join(words) for words in value)
            elif setting == "pool_workspace":
                settings["pool.workspace"] = value
            else:
                settings[setting] = None if value is True else value if isinstance(value, str) else "+".join(value)
        if settings.get("outputs") == "mark+all":
            settings["outputs"] = "all"
        return settings


class NamedEngines(Options, title="engines (repeatable); the others are compared with the first"):
    """The engines in the order of the command line."""

    engines: Sequence[str] | None = option(
        "--engine",
        action="append",
        metavar="NAME[:key=value,...]",
        meaning="any engine, with its options, as in onnxrt:optimization=none; 'biopsy doctor NAME' lists them",
        decides="yes",
        flags=_FLAGS,
    )


class EngineOptions(NamedEngines, OnnxrtOptions, TensorrtOptions):
    """The engines in the order of the command line, and settings of ``--onnxrt`` and ``--trt``."""

    @property
    def names_engine(self) -> bool:
        """Whether an engine is named, or implied by a setting."""
        return bool(self.engines or self._typed_settings())

    def specs(self) -> list[EngineSpec]:
        """The chosen engines, in order, with the settings of --onnxrt and --trt.

        If no engine is named, settings imply theirs: ``--fp16`` alone means TensorRT. Raises UsageError if there is no
        engine, or a setting of an engine that is not among those named.
        """
        from biopsy.engines.registry import EngineSpec, parse_spec

        typed = self._typed_settings()
        chosen = self.engines or list(typed)
        if not chosen:
            raise errors.UsageError(
                "no engine is named to run the model",
                next_steps=["--onnxrt", "--engine NAME    for any engine that 'biopsy doctor' shows"],
            )
        for flag, options in typed.items():
            if flag not in chosen:
                example = {PLAIN_ONNXRT: "onnxrt:threads=1", PLAIN: "trt:fp16"}[flag]
                raise errors.UsageError(
                    f"{options[0]} is a setting of {flag}, and {flag} is not among the engines",
                    next_steps=[
                        f"{flag} {options[0]} ...",
                        f"with --engine, write settings after the name, as in --engine {example}",
                        f"or leave out {' '.join(options)}",
                    ],
                )
        plain = {PLAIN_ONNXRT: EngineSpec("onnxrt", self.onnxrt_settings()), PLAIN: EngineSpec("trt", self.settings())}
        return [plain[text] if text in plain else parse_spec(text) for text in chosen]

    def _typed_settings(self) -> dict[str, list[str]]:
        """The settings that were given, as they are typed, by the flag of their engine."""
        options = {PLAIN_ONNXRT: list(self.given(OnnxrtOptions.declared)), PLAIN: self.options_given()}
        return {flag: typed for flag, typed in options.items() if typed}

    def only_spec(self) -> EngineSpec | None:
        """The engine of a command that takes one, or None. Raises UsageError for several, and as ``specs`` does."""
        specs = self.specs() if self.names_engine else []
        if len(specs) > 1:
            raise errors.UsageError(f"{' and '.join(spec.text for spec in specs)}: this command takes one engine only")
        return specs[0] if specs else None


def default_engine(*, runs: bool) -> EngineSpec:
    """The engine if none is named: TensorRT if it works here, else ONNX Runtime.

    ``runs``: the model is run too, not only built, for which TensorRT needs a GPU.
    """
    from biopsy.engines.registry import EngineSpec, installed

    (tensorrt,) = installed("trt")
    works = tensorrt.version is not None and (bool(tensorrt.devices) or not runs)
    return EngineSpec("trt" if works else "onnxrt")


ALIKE = 0.7
"""The similarity from which the name of another package is suggested."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*==\s*(?P<version>[0-9A-Za-z][0-9A-Za-z.!+_-]*)")


class PinnedPackage(NamedTuple):
    """A release of a distribution, by its name on the package index."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.name}=={self.version}"


class SurroundingOptions(Options):
    """Further packages in the environment of a release, and its Python."""

    beside: Sequence[str] = several(
        "--with",
        action="extend",
        default=[],
        metavar="REQUIREMENT",
        meaning="a further package to install with it, such as 'numpy<2'",
    )
    python: str | None = option(
        "--python", metavar="PYTHON", meaning="a version of Python, or its path (default: the one that runs biopsy)"
    )


class _ReleaseOption(Options):
    packages: Sequence[str] = option(
        "--package",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        meaning="{text}, such as onnxruntime==1.20.1 (repeatable): installed into an environment of its own, once",
    )


class PackageOptions(_ReleaseOption, SurroundingOptions, title="other releases"):
    """The releases to run, by the names of their distributions, and their environments."""

    def pinned(self) -> list[PinnedPackage]:
        """The releases. Raises UsageError for invalid words, or for a package that is given twice."""
        releases = []
        for text in self.packages:
            pinned = _PINNED.fullmatch(text.strip())
            if pinned is None:
                name = _NAME.match(text.strip())
                raise errors.UsageError(
                    f"--package {printable(text)} is not NAME==VERSION",
                    next_steps=[f"--package {name[0]}==VERSION" if name else "--package onnxruntime==1.20.1"],
                )
            releases.append(PinnedPackage(normalized(pinned["name"]), pinned["version"]))
        for spelling, value in (("--with", self.beside), ("--python", self.python)):
            if value and not releases:
                raise errors.UsageError(
                    f"{spelling} belongs to --package, which is missing",
                    next_steps=[f"--package onnxruntime==1.20.1 {spelling} ..."],
                )
        names = [package.name for package in releases]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise errors.UsageError(
                f"--package {twice} is given twice",
                next_steps=["--engine onnxrt:release=1.20.1 --engine onnxrt:release=1.23.2    compares two releases"],
            )
        return releases

    def released(self, specs: Sequence[EngineSpec]) -> list[EngineSpec]:
        """The engines, each from the given release of its package; an engine that names a release itself keeps that.

        Raises UsageError for a package that belongs to none of the engines.
        """
        from biopsy.engines.base import RELEASE_SETTINGS
        from biopsy.engines.registry import EngineSpec, engines_of_distribution, parse_spec, release_settings

        released = list(specs)
        for package in self.pinned():
            names = engines_of_distribution(package.name)
            if not any(spec.name in names for spec in released):
                shown = ", ".join(dict.fromkeys(parse_spec(spec.text).name for spec in released))
                if names:
                    raise errors.UsageError(
                        f"--package {package.text} is of the engine {names[0]}, and what runs here is {shown}",
                        next_steps=[f"--engine {names[0]}    or leave out --package {package.text}"],
                    )
                raise errors.UsageError(
                    f"--package {package.text} is of no engine that runs here: {shown}",
                    next_steps=[
                        *did_you_mean(package.name, distributions_of(released), cutoff=ALIKE),
                        f"--package ... --with {package.text}    installs it beside the release of an engine",
                    ],
                )
            release = release_settings(names[0], package.name, package.version, beside=self.beside, python=self.python)
            released = [
                EngineSpec(spec.name, {**release, **spec.settings})
                if spec.name in names and not spec.settings.keys() & {*RELEASE_SETTINGS}
                else spec
                for spec in released
            ]
        return released


class RunnableEngines(EngineOptions, PackageOptions):
    """The engines of ``biopsy run``, one by default."""

    build_only: bool = switch(
        "--build-only", title="building", meaning="build the model in every engine, but run nothing", decides="yes"
    )

    def specs_to_run(self) -> list[EngineSpec]:
        """The engines that are named, else that of a given package, else ``default_engine``; each from its release.

        Raises UsageError.
        """
        from biopsy.engines.registry import EngineSpec, engines_of_distribution

        if self.names_engine:
            return self.released(self.specs())
        for package in self.pinned():
            names = engines_of_distribution(package.name)
            if names:
                return self.released([EngineSpec(names[0])])
        return self.released([default_engine(runs=not self.build_only)])


def distributions_of(specs: Sequence[EngineSpec]) -> list[str]:
    """The packages that the engines are usually installed from; an engine without releases has none."""
    from biopsy.engines.registry import find_class

    return list(dict.fromkeys(name for spec in specs for name in find_class(spec.name).distributions[:1]))


def install(engines: Iterable[Engine | type[Engine]], console: Console) -> None:
    """Install the environments of engines that run from another release. Raises CannotInstall, UsageError."""
    elsewhere = [engine.imports for engine in engines if not engine.imports.is_here]
    if not elsewhere:
        return
    from biopsy.cli.progress import Progress

    with Progress(console, None) as progress:
        for imports in elsewhere:
            imports.install(progress)
