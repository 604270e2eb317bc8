"""The hardware of this machine as engines see it, as far as the system tells: processor, graphics cards, driver."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """``features`` are those of the processor that change how engines compute.

    ``graphics`` are the cards of NVIDIA, by the names of their models, ``driver`` is the version of their driver.
    """

    processor: str
    features: tuple[str, ...]
    graphics: tuple[str, ...]
    driver: str | None


def hardware() -> Hardware:
    """That of this machine."""
    cpu = dict(_facts(_CPU))
    flags = cpu.get("flags") or cpu.get("Features") or ""
    cards = [dict(_facts(path)).get("Model") for path in sorted(_NVIDIA.glob("gpus/*/information"))]
    return Hardware(
        processor=cpu.get("model name") or platform.processor() or platform.machine(),
        features=tuple(sorted(_FEATURES & set(flags.split()))),
        graphics=tuple(filter(None, cards)),
        driver=dict(_facts(_NVIDIA / "version")).get("NVRM version"),
    )


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
