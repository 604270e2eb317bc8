"""How an environment of the cache is written: what was asked for, for which Python."""

from __future__ import annotations

from biopsy.environments.cache import CachedEnvironment
from biopsy.quantities import size_text
from biopsy.text import series


def contents(environment: CachedEnvironment) -> str:
    """``onnxruntime==1.17.3 with numpy<2, Python 3.11.7``; of one that is not whole, what is known of it."""
    record = environment.record
    if record is None:
        return "being installed" if environment.in_use else "left by an installation that was interrupted"
    added = f" with {series(record.added)}" if record.added else ""
    return f"{series(record.requirements)}{added}, Python {record.python}"


def total(environments: list[CachedEnvironment]) -> str:
    """The size of several: ``1.2 GB``."""
    return size_text(sum(environment.bytes for environment in environments))
