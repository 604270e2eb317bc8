"""Options of ``--trt`` as users of TensorRT type them; each stands for a setting of the engine trt."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

PLAIN = "--trt"
"""What stands in ``args.engines`` for the flag, so that the options here apply to it alone."""


class _Words(NamedTuple):
    """An option that takes values: its spellings, the setting they stand for, and its help."""

    names: tuple[str, ...]
    setting: str
    metavar: str
    help: str
    many: bool = True


_SWITCHES = {
    "--fp16": ("fp16", "allow float16 (TensorRT 10; later ones use the types of the model)"),
    "--bf16": ("bf16", "allow bfloat16 (the same)"),
    "--fp8": ("fp8", "allow 8-bit floats (the same)"),
    "--int8": ("int8", "allow int8 (the same)"),
    "--tf32": ("tf32", "allow TF32 for float32"),
    "--strongly-typed": ("strongly_typed", "use the types of the model (always so but for TensorRT 10)"),
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
}
"""Flag -> TensorRT's builder flag."""

_WORDS = (
    _Words(("--trt-min-shapes",), "min_shapes", "NAME:[d0,...]", "smallest shapes of inputs"),
    _Words(("--trt-opt-shapes",), "opt_shapes", "NAME:[d0,...]", "shapes of inputs to be fastest for"),
    _Words(("--trt-max-shapes",), "max_shapes", "NAME:[d0,...]", "greatest shapes of inputs"),
    _Words(("--trt-outputs",), "outputs", "NAME", "tensors of TensorRT's network to return; 'mark all': every one"),
    _Words(("--pool-limit", "--memory-pool-limit"), "pool", "POOL:SIZE", "limits of memory pools: workspace:16M"),
    _Words(("--workspace",), "pool.workspace", "SIZE", "the same for the pool workspace", many=False),
    _Words(("--load-timing-cache",), "load_timing_cache", "FILE", "a timing cache to begin with", many=False),
    _Words(("--save-timing-cache",), "save_timing_cache", "FILE", "where to keep the timing cache", many=False),
    _Words(("--builder-optimization-level",), "optimization", "LEVEL", "0 to 5", many=False),
    _Words(("--hardware-compatibility-level",), "hardware_compatibility", "LEVEL", "such as ampere_plus", many=False),
    _Words(("--tactic-sources",), "tactic_sources", "NAME", "tactic sources to use, and no others"),
    _Words(("--onnx-flags",), "onnx_flags", "NAME", "flags of the ONNX parser, such as native_instancenorm"),
    _Words(("--plugins",), "plugins", "FILE", "libraries of plug-ins to load"),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``--trt``."""
    group = parser.add_argument_group("settings of --trt (with --engine, write them after the name)")
    for flag, (setting, text) in _SWITCHES.items():
        group.add_argument(flag, dest=f"trt_{setting}", action="store_true", help=text)
    for words in _WORDS:
        nargs = {"nargs": "+"} if words.many else {}
        group.add_argument(
            *words.names,
            dest=_dest(words),
            metavar=words.metavar,
            help=words.help,
            **nargs,  # type: ignore[arg-type]
        )
    for flag, name in _BUILDER_FLAGS.items():
        group.add_argument(
            flag, dest="trt_flags", action="append_const", const=name, help=f"builder flag {name.upper()}"
        )


def _dest(words: _Words) -> str:
    return f"trt_{words.setting.replace('.', '_')}"


def settings(args: argparse.Namespace) -> dict[str, str | None]:
    """The settings of the engine trt that were given; none for a command without these options."""
    found: dict[str, str | None] = {}
    for setting, _ in _SWITCHES.values():
        if getattr(args, f"trt_{setting}", False):
            found[setting] = None
    for words in _WORDS:
        value = getattr(args, _dest(words), None)
        if value is None:
            continue
        if words.setting == "pool":
            found |= {f"pool.{pool}": limit for pool, _, limit in (word.partition(":") for word in value)}
        else:
            found[words.setting] = "+".join(value) if words.many else value
    flags: Sequence[str] | None = getattr(args, "trt_flags", None)
    if flags:
        found["flags"] = "+".join(flags)
    if found.get("outputs") == "mark+all":
        found["outputs"] = "all"
    return found
