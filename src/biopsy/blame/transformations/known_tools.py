"""The tools that are known: one line for each, and one file in ``tools``."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.blame.transformations.tool import Tool
from biopsy.blame.transformations.tools.float16 import Float16, OnnxRuntimeFloat16
from biopsy.blame.transformations.tools.onnxoptimizer import OnnxOptimizer
from biopsy.blame.transformations.tools.onnxruntime_offline import OnnxRuntimeOffline
from biopsy.blame.transformations.tools.onnxruntime_transformers import OnnxRuntimeTransformers
from biopsy.blame.transformations.tools.onnxscript_optimizer import OnnxScript
from biopsy.blame.transformations.tools.onnxsim import OnnxSim
from biopsy.blame.transformations.tools.onnxslim import OnnxSlim
from biopsy.blame.transformations.tools.quantize_static import QuantizeStatic

TOOLS: Mapping[str, type[Tool]] = {
    "onnxslim": OnnxSlim,
    "onnxsim": OnnxSim,
    "onnxoptimizer": OnnxOptimizer,
    "onnxruntime": OnnxRuntimeOffline,
    "onnxruntime.transformers": OnnxRuntimeTransformers,
    "onnxscript": OnnxScript,
    "quantize-static": QuantizeStatic,
    "fp16": Float16,
    "onnxruntime.float16": OnnxRuntimeFloat16,
}
