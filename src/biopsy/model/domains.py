"""Domains of operator sets."""

PUBLIC_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft"}
)
"""Domains that are in nobody's possession: engines may know their operators, and their names tell of nobody."""
