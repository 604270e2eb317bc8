"""The tools that are known: one line for each, and one file in ``tools``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from biopsy.blame.transformations.tool import Tool

TOOLS: Mapping[str, str] = {
    "onnxslim": "onnxslim:OnnxSlim",
    "onnxsim": "onnxsim:OnnxSim",
    "onnxoptimizer": "onnxoptimizer:OnnxOptimizer",
    "onnxruntime": "onnxruntime_offline:OnnxRuntimeOffline",
    "onnxruntime.transformers": "onnxruntime_transformers:OnnxRuntimeTransformers",
    "onnxscript": "onnxscript_optimizer:OnnxScript",
    "quantize-static": "quantize_static:QuantizeStatic",
    "fp16": "float16:Float16",
    "onnxruntime.float16": "float16:OnnxRuntimeFloat16",
}


def tool_class(name: str) -> type[Tool]:
    """The class of a known tool. Raises KeyError."""
    module, _, attribute = TOOLS[name].partition(":")
    found: type[Tool] = getattr(import_module(f"biopsy.blame.transformations.tools.{module}"), attribute)
    return found
