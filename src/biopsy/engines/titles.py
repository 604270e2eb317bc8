"""What a person calls an engine, in a sentence."""

from __future__ import annotations

TITLES = {
    "onnxrt": "ONNX Runtime",
    "openvino": "OpenVINO",
    "trt": "TensorRT",
    "reference": "the reference evaluator of onnx",
}
"""Of the engines that come with biopsy and are known beyond it."""


def title_of(name: str) -> str:
    """Such as ``ONNX Runtime``; ``the engine 'mine'`` for any other engine."""
    return TITLES.get(name, f"the engine {name!r}")
