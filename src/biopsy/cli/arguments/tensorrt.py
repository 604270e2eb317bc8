"""The options of ``--trt``, as users of TensorRT type them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, switch

PLAIN = "--trt"
"""What stands in ``args.engines`` for the flag, so that the options here apply to it alone."""


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
    """A type that takes what the engine takes, so that nothing impossible is found out late, or never."""

    def value(text: str) -> str:
        from biopsy.engines.trt.settings import OPTIONS

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
    """A field for the setting ``of`` the engine trt, by default the one that the first spelling names."""
    name = of or spellings[0].removeprefix("--trt").strip("-").replace("-", "_")
    return option(*spellings, meaning=meaning, **{"type": _checked(name), "metavar": metavar, **settings})


_settings = partial(_setting, nargs="+")
_shapes = partial(_settings, metavar="NAME:[d0,...]", action="append")
"""Shapes of inputs, which stand once for each optimization profile."""


class TensorrtOptions(Options):
    """The settings of ``--trt``: each field is the name of one, behind ``trt_``."""

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
    trt_flags: Sequence[str] | None = None

    @classmethod
    def add_tensorrt(cls, parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
        """Add them as the group of a command's options, except those of the fields ``without``."""
        group = parser.add_argument_group("settings of --trt (with --engine, write them after the name)")
        cls.add(group, only=[field for field in cls.declared if field not in without])
        for flag, name in _BUILDER_FLAGS.items():
            group.add_argument(
                flag, dest="trt_flags", action="append_const", const=name, help=f"builder flag {name.upper()}"
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
