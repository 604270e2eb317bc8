"""What a command ran on: packages, engines, the processor and what it can do, the graphics card."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from biopsy import errors
from biopsy.report.tree import Tree

_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13", "ml_dtypes",
    "onnxscript",
)  # fmt: skip
"""Distributions whose version may change a result."""

_FEATURES = frozenset(
    {
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "fphp", "bf16", "i8mm", "sve", "sve2", "svebf16"),
    }
)
"""Features of a processor by which engines choose their kernels, or round otherwise."""

_CPU, _NVIDIA = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia")
_MOST_READ = 1 << 16


def versions_tree(engines: Iterable[str] = ()) -> Tree:
    """The facts of this machine; ``engines`` are those that took part, as ``NAME[:key=value,...]``.

    Asking an engine for its version imports its package.
    """
    return {
        "biopsy": metadata.version("biopsy"),
        "python": platform.python_version(),
        "packages": dict(_packages()),
        "engines": [_engine(label) for label in dict.fromkeys(engines)],
        **machine_tree(),
    }


def machine_tree() -> Tree:
    """The system, the processor and what it can do, the first graphics card and its driver; None where unknown."""
    cpu = dict(_facts(_CPU))
    flags = cpu.get("flags") or cpu.get("Features") or ""
    gpu, driver = _graphics()
    return {
        "os": platform.platform(terse=True),
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cpu_features": sorted(_FEATURES & set(flags.split())),
        "gpu": gpu,
        "driver": driver,
    }


def _packages() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _engine(label: str) -> Tree:
    from biopsy.engines.registry import class_of, parse_spec

    name = label.partition(":")[0]
    try:
        spec = parse_spec(label)
        name, engine = spec.name, class_of(spec)
        version: str | None = engine.version()
        elsewhere = dict(engine.imports.facts())
    except errors.BiopsyError:
        version, elsewhere = None, {}
    told: Tree = {"label": label, "name": name, "version": version}
    return {**told, "environment": elsewhere} if elsewhere else told


def _facts(path: Path) -> Iterator[tuple[str, str]]:
    """The lines ``key : value`` at the beginning of a file, the first of each key; none where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_MOST_READ).splitlines()
    except OSError:
        return
    met = set()
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and (key := key.strip()) not in met:
            met.add(key)
            yield key, value.strip()


def _graphics() -> tuple[str | None, str | None]:
    """The first card of NVIDIA and the version of its driver; None where there is none."""
    cards = sorted(_NVIDIA.glob("gpus/*/information"))
    model = dict(_facts(cards[0])).get("Model") if cards else None
    driver = dict(_facts(_NVIDIA / "version")).get("NVRM version")
    return model, driver
