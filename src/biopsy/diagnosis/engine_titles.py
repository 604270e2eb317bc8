"""Engines as a verdict names them: with their version and their settings."""

from __future__ import annotations

from biopsy.engines import titles
from biopsy.engines.registry import parse_spec


def title_of(spec: str) -> str:
    """Such as ``ONNX Runtime``."""
    return titles.title_of(parse_spec(spec).name)


def full_title(spec: str, version: str) -> str:
    """Such as ``ONNX Runtime 1.31.1 (optimization=none)``."""
    settings = parse_spec(spec).text.partition(":")[2]
    named = " ".join(filter(None, (title_of(spec), version)))
    return f"{named} ({settings})" if settings else named
