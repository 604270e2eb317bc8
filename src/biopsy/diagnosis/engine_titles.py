"""Engines as a person calls them: with their name, their version and their settings."""

from __future__ import annotations

from biopsy import errors
from biopsy.engines.registry import EngineSpec, find_class, parse_spec

_SHORT = {"trt": "TensorRT", "reference": "the reference evaluator of onnx", "fake": "the engine 'fake'"}


def title_of(spec: str) -> str:
    """Such as ``ONNX Runtime``; of an engine that is not known here its name."""
    name = parse_spec(spec).name
    try:
        return _SHORT.get(name) or find_class(name).summary
    except errors.EngineMissing:
        return name


def full_title(spec: str, version: str) -> str:
    """Such as ``ONNX Runtime 1.31.1 (optimization=none)``."""
    parsed: EngineSpec = parse_spec(spec)
    settings = parsed.text.partition(":")[2]
    named = " ".join(filter(None, (title_of(spec), version)))
    return f"{named} ({settings})" if settings else named
