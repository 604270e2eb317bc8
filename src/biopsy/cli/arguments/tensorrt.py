"""Options of ``--trt`` as users of TensorRT type them; each stands for a setting of the engine trt."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence

from biopsy import errors
from biopsy.cli.arguments import file_kinds

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
    "load_timing_cache": file_kinds.READ_TEXT,
    "save_timing_cache": file_kinds.written_over(
        "trt_load_timing_cache", "artifacts", textual=True
    ),  # one cache that grows is usual, and so is one that each build leaves
    "plugins": file_kinds.READ_TEXT,
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
        from biopsy.engines.trt.settings import OPTIONS

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
